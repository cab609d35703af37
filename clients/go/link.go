package throng

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A link is one attempt at one transport, from opening to loss. Its methods return a *loss, an
// *Error that no retry would change, or the error of the context. It is never used again.
type link interface {
	// prove connects as far as that is possible without the positions of the channels, to show that
	// the transport works. Another goroutine may call it, before open.
	prove() error
	// open connects and subscribes.
	open() ([]event, error)
	// receive returns the next events.
	receive() ([]event, error)
	close()
	isOpen() bool
	// connection is the server's name of this connection; empty for a long-poll.
	connection() string
	// suspect says that a request that was sent at since has no answer yet. Unless the server shows
	// a sign of life, the link is lost at until.
	suspect(since, until time.Time)
}

// The duration is the time to open.
var links = map[Transport]func(context.Context, *Client, *cursors, time.Duration) link{
	WebSocket: newSocketLink,
	SSE:       newStreamLink,
	Poll:      newPollLink,
}

var (
	errSilent = errors.New("the server fell silent")
	// errBetter ends a link because a better transport works.
	errBetter = errors.New("a better transport works")
)

// A watchdog calls a function when nothing has arrived until a moment. It counts only while
// somebody waits for data: to a reader that is slow, the server may have sent much.
type watchdog struct {
	mu      sync.Mutex
	at      time.Time
	isArmed bool
	timer   *time.Timer
	overdue func()
}

func newWatchdog(overdue func()) *watchdog {
	w := &watchdog{overdue: overdue}
	w.timer = time.AfterFunc(time.Hour, w.fire)
	w.timer.Stop()
	return w
}

// set sets the moment; the zero time means never.
func (w *watchdog) set(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = at
	w.schedule()
}

// hasten sets an earlier moment.
func (w *watchdog) hasten(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.IsZero() || at.Before(w.at) {
		w.at = at
		w.schedule()
	}
}

// arm begins to wait, for grace if the moment is over.
func (w *watchdog) arm(grace time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.at.IsZero() && !time.Now().Before(w.at) {
		w.at = time.Now().Add(grace)
	}
	w.isArmed = true
	w.schedule()
}

func (w *watchdog) disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isArmed = false
	w.timer.Stop()
}

func (w *watchdog) schedule() {
	if w.isArmed && !w.at.IsZero() {
		w.timer.Reset(max(0, time.Until(w.at)))
	} else {
		w.timer.Stop()
	}
}

func (w *watchdog) fire() {
	w.mu.Lock()
	isOverdue := w.isArmed && !w.at.IsZero() && !time.Now().Before(w.at)
	w.mu.Unlock()
	if isOverdue {
		w.overdue()
	}
}
