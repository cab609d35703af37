package throng

import (
	"log/slog"
	"sync"
)

// The causes that a client warns of: as many as somebody reads.
const causesMax = 100

// warnings go to the logger, once for each cause.
type warnings struct {
	logger *slog.Logger
	mu     sync.Mutex
	said   map[string]bool
}

func (w *warnings) warn(cause, message string, attributes ...any) {
	w.mu.Lock()
	isNew := !w.said[cause] && len(w.said) < causesMax
	if isNew {
		if w.said == nil {
			w.said = map[string]bool{}
		}
		w.said[cause] = true
	}
	w.mu.Unlock()
	if isNew {
		w.logger.Warn("throng: "+message, attributes...)
	}
}
