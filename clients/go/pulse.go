package throng

import "time"

// A pulse has the deadlines of a WebSocket: that frames arrive, and that what this client sends is
// answered. Heartbeats and messages do not show that the server still hears the client.
type pulse struct {
	heartbeat time.Duration
	patience  time.Duration
	frameAt   time.Time
	// frameBy is when any frame must have arrived, after a ping; answerBy is when the oldest command
	// or ping must have its answer.
	frameBy, answerBy time.Time
	awaySince         time.Time
	// Before quietFrom a heartbeat is not late: it may lie ready.
	quietFrom time.Time
}

// isWaiting says whether the server owes something.
func (p *pulse) isWaiting() bool { return !p.frameBy.IsZero() || !p.answerBy.IsZero() }

// due is when to ask, or to give up if the server owes something; the zero time means never.
func (p *pulse) due() time.Time {
	switch {
	case p.isWaiting():
		return earlier(p.frameBy, p.answerBy)
	case p.heartbeat <= 0:
		return time.Time{}
	}
	// Under load heartbeats may be 3 s late, and pings would add to the load.
	return later(p.frameAt.Add(p.heartbeat+p.patience*3/10), p.quietFrom)
}

// asked says that a command was sent.
func (p *pulse) asked(now time.Time) {
	if p.answerBy.IsZero() {
		p.answerBy = now.Add(p.patience)
		p.countFrom(now)
	}
}

// pinged says that a ping was sent because nothing has arrived in time.
func (p *pulse) pinged(now time.Time) {
	p.frameBy = later(p.frameAt.Add(p.heartbeat+p.patience/2), now.Add(p.patience/5))
	p.asked(now)
}

// doubted says that a ping was sent because a request of another connection has no answer yet.
func (p *pulse) doubted(now, until time.Time) {
	if p.answerBy.IsZero() {
		p.countFrom(now)
	}
	p.answerBy = earlier(p.answerBy, later(until, now.Add(p.patience/5)))
}

// heard says that a frame has arrived.
func (p *pulse) heard(now time.Time) { p.frameAt, p.frameBy = now, time.Time{} }

// answered says that the server has heard this client, and whether it owes no other answer. The
// next may be as late again, for the server answers one after the other.
func (p *pulse) answered(now time.Time, isComplete bool) {
	p.answerBy = time.Time{}
	if !isComplete {
		p.asked(now)
	}
}

// countFrom says that the time for which nobody waits for frames counts from now on.
func (p *pulse) countFrom(now time.Time) {
	if !p.awaySince.IsZero() {
		p.awaySince = now
	}
}

// left says that nobody waits for frames from now on.
func (p *pulse) left(now time.Time) { p.awaySince = now }

// cameBack says that somebody waits for frames again. Meanwhile they may have piled up, an answer
// behind them.
func (p *pulse) cameBack(now time.Time) {
	if p.awaySince.IsZero() {
		return
	}
	if !p.answerBy.IsZero() {
		p.answerBy = p.answerBy.Add(now.Sub(p.awaySince))
	}
	soon := now.Add(p.patience / 2)
	if !p.frameBy.IsZero() && !p.frameBy.After(now) {
		p.frameBy = soon
	} else if due := p.due(); !due.After(now) {
		p.quietFrom = soon
	}
	p.awaySince = time.Time{}
}

// earlier is the earlier of two times of which one may be zero, which means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
