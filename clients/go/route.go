package throng

import (
	"context"
	"time"
)

const (
	// The pauses between attempts at better transports double from these up to the most: while a
	// lesser one holds, and after its loss, when the network may be another one.
	searchPause         = 10 * time.Second
	searchPauseReopened = 2 * time.Second
	searchPauseMax      = 3 * time.Minute
)

// A route is the transport in use, and the way to others. A transport that fails or dies soon while
// the server answers is given up; better ones are tried again while a lesser one holds.
type route struct {
	// transport is the place in Options.Transports.
	transport int
	failures  int
	// isDoubted: the server has answered since the transport failed, so that one more failure is its
	// own.
	isDoubted bool
	// lateness is the number of attempts that were too late.
	lateness int
	// refuge is the transport to go back to if the better one fails soon; 0 if there is none.
	refuge int
	// isReopened: the lesser transport has been open before.
	isReopened bool
	// tries at better transports that failed in a row, and when the last one ended.
	tries   int
	triedAt time.Time
	search  *search
}

// openTimeout doubles with each attempt that was too late.
func (r *route) openTimeout(options Options) time.Duration {
	most := max(options.OpenTimeout, openTimeoutMax)
	return min(most, options.OpenTimeout<<min(r.lateness, 16))
}

// opened says that the transport works. A quick one ends the longer times.
func (r *route) opened(isQuick bool) {
	if isQuick {
		r.lateness = 0
	}
}

// proven says that the transport has held for long enough.
func (r *route) proven() {
	r.failures, r.isDoubted, r.refuge = 0, false, 0
	if r.transport == 0 {
		r.tries = 0
	}
}

// failed counts a failure. It says whether to find out if the server answers.
func (r *route) failed(gone *loss) bool {
	if gone.isLate {
		r.lateness++
	}
	r.failures++
	if gone.isUnusable {
		r.failures = max(r.failures, failuresMax)
	}
	return r.failures >= failuresMax
}

// flees goes back from a better transport that did not hold. It is false if there is no way back.
func (r *route) flees() bool {
	if r.refuge == 0 {
		return false
	}
	r.transport, r.refuge = r.refuge, 0
	r.failures, r.isDoubted = 0, false
	r.tries++
	r.triedAt = time.Now()
	return true
}

// answered says that the server answers although the transport has failed. It returns whether to
// try at once: the same one, or the next. The first one after the last has its backoff.
func (r *route) answered(isQuick bool, count int) bool {
	if isQuick {
		r.lateness = 0
	}
	if !r.isDoubted {
		r.isDoubted = true
		return true
	}
	r.transport = (r.transport + 1) % count
	r.failures, r.isDoubted, r.isReopened = 0, false, false
	r.tries, r.triedAt = 0, time.Now()
	return r.transport != 0
}

// A search tries better transports than the one in use.
type search struct {
	cancel context.CancelFunc
	done   chan struct{}
	// The others are set once it is done: the better link, if there is one.
	link      link
	leave     context.CancelCauseFunc
	transport int
	tries     int
	triedAt   time.Time
}

// begin searches while the subscription's lesser link is open. It ends that link with errBetter.
func (r *route) begin(ctx context.Context, s *Subscription) {
	if r.transport == 0 {
		return
	}
	pause := searchPause
	if r.isReopened {
		pause = searchPauseReopened
	}
	r.isReopened = true
	limited, cancel := context.WithCancel(ctx)
	r.search = &search{cancel: cancel, done: make(chan struct{}), tries: r.tries, triedAt: r.triedAt}
	go r.search.run(ctx, limited, s.client, s.cursors, r.transport, pause, s.leave)
}

// end ends the search, and what it has found.
func (r *route) end() {
	if r.search == nil {
		return
	}
	r.search.cancel()
	<-r.search.done
	r.tries, r.triedAt = r.search.tries, r.search.triedAt
	if r.search.link != nil {
		r.search.link.close()
		r.search.leave(nil)
	}
	r.search = nil
}

// take is the better link that was found.
func (r *route) take() (link, context.CancelCauseFunc) {
	<-r.search.done
	r.search.cancel()
	found := r.search
	r.refuge, r.transport, r.search = r.transport, found.transport, nil
	r.failures, r.isDoubted = 0, false
	return found.link, found.leave
}

func (f *search) run(
	ctx, limited context.Context, client *Client, cursors *cursors,
	lesser int, pause time.Duration, leave context.CancelCauseFunc,
) {
	defer close(f.done)
	for {
		wait := min(searchPauseMax, pause<<min(f.tries, 16))
		wait = time.Duration(float64(wait) * (1 + client.options.Random()) / 2)
		if !sleep(limited, time.Until(f.triedAt.Add(wait))) {
			return
		}
		for f.transport = range lesser {
			if f.try(ctx, limited, client, cursors) {
				leave(errBetter)
				return
			}
		}
		f.tries++
		f.triedAt = time.Now()
	}
}

// try connects over one transport. The link outlives the search.
func (f *search) try(ctx, limited context.Context, client *Client, cursors *cursors) bool {
	if _, isReady := client.tokens.now(); !isReady {
		if _, err := client.tokens.load(limited, ""); err != nil {
			return false
		}
	}
	own, leave := context.WithCancelCause(ctx)
	stop := context.AfterFunc(limited, func() { leave(context.Canceled) })
	timeout := max(client.options.OpenTimeout, openTimeoutMax)
	made := links[client.options.Transports[f.transport]](own, client, cursors, timeout)
	if made.prove() == nil && stop() {
		f.link, f.leave = made, leave
		return true
	}
	made.close()
	leave(nil)
	return false
}
