package throng

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// A link open for this long was stable: after its loss, the backoff starts over.
	stable = 10 * time.Second
	// Failures of a transport in a row after which it is doubted: if the server answers and it fails
	// once more, the next one is tried.
	failuresMax = 2
	// The longest time to open to which attempts that are too late lead.
	openTimeoutMax = 30 * time.Second
)

// A State is what the connection of a subscription does now.
type State struct {
	// Name is connecting, open or waiting.
	Name      string
	Transport Transport
	// Delay is the time until the next attempt, and Reason why the connection was lost; both while
	// it waits. A proxy or another server that has refused it is named.
	Delay  time.Duration
	Reason string
}

// A Subscription follows one or several channels, on a connection of its own. Set its fields before
// Messages.
type Subscription struct {
	// History is the number of latest messages to begin with.
	History int
	// Since is the id to resume after, for each channel. Without it, or with History, the
	// subscription begins now.
	Since map[Target]string
	// State: the subscription begins with the newest message of each key, then OnStateEnd is called.
	// It excludes History.
	State bool
	// Pace is the least time between two deliveries of a channel, in whole milliseconds, 10 ms to a
	// minute: messages that come within it go out together, the first after silence at once. Unless set
	// it is that of Options.Params.
	Pace time.Duration
	// Info is what the client shows to the other members of the channels, over WebSockets: what becomes a
	// JSON object. Needs the right "update".
	Info any
	// OnGap is called where messages are missing, before the next message.
	OnGap func(Gap)
	// OnConflated is called where messages were skipped for newer ones, before the next message.
	OnConflated func(Conflated)
	// OnErased is called where messages are erased, before the next message: forget them.
	OnErased func(Erased)
	// OnStateEnd is called where a state is complete, before the next message.
	OnStateEnd func(StateEnd)
	// OnEnded is called when a channel has ended, after its last message: the subscription goes on with
	// the others, and ends without an error after the last one.
	OnEnded func(Ended)
	// OnUnread is called with the number of unread messages in the user's inbox: once connected, and when
	// the user has read on, on whatever device. A new message is no such event. A long-poll does not tell
	// it.
	OnUnread func(Unread)
	// OnPresence is called with who follows each channel: at once, and on each change. Where the server
	// has no presence events, or not for this client, the subscription ends with its error.
	OnPresence func(PresenceEvent)
	// OnUnreadable is called for a message that cannot be decoded, in its place. Without it the
	// client's Logger gets a warning.
	OnUnreadable func(Unreadable)
	// OnState is called when the connection opens or is lost.
	OnState func(State)

	// pending are the events that have arrived and are not taken yet; taken are the last ids of those
	// that are.
	pending []event
	taken   map[Target]string
	client  *Client
	shown   *shown
	targets []Target
	cursors *cursors
	link    link
	// leave cancels the context of the link.
	leave   context.CancelCauseFunc
	attempt int
	retryAt time.Time
	// heardAt is when the link last had something to deliver, or a heartbeat.
	openedAt, heardAt time.Time
	// isRenewed: a newer token was tried at once, and has not held for long.
	isRenewed bool
	route     route
}

// Subscribe follows channels, and at most one user's inbox. Nothing happens before Messages.
func (c *Client) Subscribe(targets ...Target) *Subscription {
	return &Subscription{client: c, shown: &shown{}, targets: targets, taken: map[Target]string{}}
}

// Messages yields each message of a channel once and in order, over any number of reconnects; if
// messages are missing, OnGap is called before the next one. It is read as fast as the loop takes
// messages. Leaving the loop closes the connection, and Messages called again resumes.
//
// It ends once all channels have ended. An error ends it, too: that of the context, or an *Error if the server refuses the subscription for
// good. One goroutine at a time may iterate.
func (s *Subscription) Messages(ctx context.Context) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for next, err := range s.events(ctx) {
			if err != nil {
				yield(Message{}, err)
				return
			}
			if next.message != nil && !yield(*next.message, nil) {
				return
			}
		}
	}
}

// events yields all that comes, after the functions of the subscription are called with it.
func (s *Subscription) events(ctx context.Context) iter.Seq2[event, error] {
	return func(yield func(event, error) bool) {
		defer s.release()
		err := s.start()
		var events []event
		for ; err == nil; events, err = s.next(ctx) {
			s.pending = append(s.pending, events...)
			for len(s.pending) > 0 {
				if !yield(s.take(), nil) {
					return
				}
			}
			if s.cursors.areOver() {
				return
			}
		}
		yield(event{}, err)
	}
}

// Connection is the server's name of the open connection, to exclude it from a publication. It is
// empty for a long-poll. Call it in the loop.
func (s *Subscription) Connection() string {
	if s.link == nil {
		return ""
	}
	return s.link.connection()
}

// Position has the ids to resume after, as Since takes them. Call it in the loop, or after it.
func (s *Subscription) Position() map[Target]string {
	positions := map[Target]string{}
	if s.cursors == nil {
		return positions
	}
	for _, each := range slices.Concat(s.cursors.all, s.cursors.ended) {
		if each.position != "" && !each.isSilent {
			positions[each.target] = each.position
		}
	}
	// What has arrived and is not taken yet would be lost.
	for _, each := range s.pending {
		target, _, hasPlace := each.place()
		if !hasPlace {
			continue
		}
		positions[target] = s.taken[target]
		if positions[target] == "" {
			positions[target] = s.cursors.known(target).first
		}
	}
	return positions
}

// take takes the next event, and calls the function for it.
func (s *Subscription) take() event {
	next := s.pending[0]
	s.pending = s.pending[1:]
	switch {
	case next.presence != nil:
		s.OnPresence(*next.presence)
		return next
	case next.conflated != nil:
		if s.OnConflated != nil {
			s.OnConflated(*next.conflated)
		}
		return next
	case next.ended != nil:
		if s.OnEnded != nil {
			s.OnEnded(*next.ended)
		}
		return next
	case next.unread != nil:
		if s.OnUnread != nil {
			s.OnUnread(*next.unread)
		}
		return next
	case next.handled != nil:
		s.acknowledge(next.handled)
		return next
	}
	if target, id, hasPlace := next.place(); hasPlace {
		s.taken[target] = id
	}
	if next.unreadable != nil && s.OnUnreadable != nil {
		s.OnUnreadable(*next.unreadable)
	} else if next.unreadable != nil {
		s.client.warnUnreadable(*next.unreadable)
	}
	if next.erased != nil && s.OnErased != nil {
		s.OnErased(*next.erased)
	}
	if next.gap != nil && s.OnGap != nil {
		s.OnGap(*next.gap)
	}
	if next.stateEnd != nil && s.OnStateEnd != nil {
		s.OnStateEnd(*next.stateEnd)
	}
	return next
}

// acknowledge tells the server that the frames before this place are handled.
func (s *Subscription) acknowledge(asked *socketLink) {
	frames := 1
	for len(s.pending) > 0 && s.pending[0].handled == asked {
		s.pending = s.pending[1:]
		frames++
	}
	// A link that is gone has nobody to tell.
	if s.link == link(asked) {
		asked.acknowledge(frames)
	}
}

func (s *Subscription) start() error {
	if s.cursors != nil {
		return nil
	}
	inboxes := 0
	seen := map[Target]bool{}
	paceMs, err := s.client.options.Params.paceMs(s.Pace)
	if err != nil {
		return err
	}
	made := &cursors{history: s.History, hasPresence: s.OnPresence != nil, paceMs: paceMs, shown: s.shown}
	if s.Info != nil {
		object, err := objectOf(s.Info)
		if err != nil {
			return err
		}
		s.shown.set(object)
	}
	var last []*cursor
	for _, target := range s.targets {
		if err := target.checkUse(); err != nil {
			return err
		}
		if seen[target] {
			return fmt.Errorf("throng: %s is named twice", target)
		}
		seen[target] = true
		position, hasSince := s.Since[target]
		if len(s.Since) > 0 && !hasSince {
			return errors.New("throng: Since has an id for each channel, or for none")
		}
		each := &cursor{target: target, position: position, wantsState: s.State}
		// Ids of HTTP are in the order of the URL, in which the user is last.
		if target.IsUser() {
			inboxes++
			last = append(last, each)
		} else {
			made.all = append(made.all, each)
		}
	}
	if len(s.targets) == 0 || inboxes > 1 {
		return errors.New("throng: a subscription follows at least one channel, and at most one user's inbox")
	}
	if s.History < 0 {
		return fmt.Errorf("throng: History is a number of messages, 0 or more, not %d", s.History)
	}
	if s.State && s.History > 0 {
		return errors.New("throng: State excludes History")
	}
	if made.hasPresence && len(made.all) == 0 {
		return errors.New("throng: OnPresence needs a channel: inboxes have no presence events")
	}
	if user := s.client.options.User; user != "" && inboxes == 0 {
		last = append(last, &cursor{target: User(user), isSilent: true})
	}
	made.all = append(made.all, last...)
	s.cursors = made
	return nil
}

func (s *Subscription) current() Transport { return s.client.options.Transports[s.route.transport] }

func (s *Subscription) report(state State) {
	if s.OnState != nil {
		s.OnState(state)
	}
}

// next returns the next events; there may be none.
func (s *Subscription) next(ctx context.Context) ([]event, error) {
	var events []event
	var err error
	if s.link == nil {
		events, err = s.open(ctx)
	} else if events, err = s.link.receive(); errors.Is(err, errBetter) {
		events, err = s.change(ctx)
	}
	var gone *loss
	switch {
	case err == nil:
		s.heardAt = time.Now()
		return events, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &gone):
		return nil, s.lost(ctx, gone)
	}
	return nil, err
}

func (s *Subscription) open(ctx context.Context) ([]event, error) {
	if wait := time.Until(s.retryAt); wait > 0 && !sleep(ctx, wait) {
		return nil, ctx.Err()
	}
	if _, isReady := s.client.tokens.now(); !isReady {
		if _, err := s.client.tokens.load(ctx, ""); err != nil {
			var refused *Error
			if errors.As(err, &refused) && refused.Code != "no_token" {
				s.client.warnings.warn(refused.Message, refused.Message)
				return nil, &loss{message: refused.Message, hint: noHint, isAnswer: true}
			}
			return nil, err
		}
	}
	own, leave := context.WithCancelCause(ctx)
	timeout := s.route.openTimeout(s.client.options)
	return s.begin(ctx, links[s.current()](own, s.client, s.cursors, timeout), leave)
}

// begin opens a link, which may be connected already.
func (s *Subscription) begin(
	ctx context.Context, made link, leave context.CancelCauseFunc,
) ([]event, error) {
	s.report(State{Name: "connecting", Transport: s.current()})
	s.link, s.leave = made, leave
	s.client.register(made, true)
	began := time.Now()
	events, err := made.open()
	if err != nil {
		return nil, err
	}
	s.openedAt = time.Now()
	s.route.opened(s.openedAt.Sub(began) < s.client.options.OpenTimeout)
	s.route.begin(ctx, s)
	s.report(State{Name: "open", Transport: s.current()})
	return events, nil
}

// change goes on over the better transport that was found. Positions hold for all transports, so
// that nothing is lost or doubled.
func (s *Subscription) change(ctx context.Context) ([]event, error) {
	better, leave := s.route.take()
	s.release()
	return s.begin(ctx, better, leave)
}

func (s *Subscription) lost(ctx context.Context, gone *loss) error {
	over, lived := s.current(), time.Duration(0)
	if s.link != nil && s.link.isOpen() {
		lived = time.Since(s.openedAt)
		if gone.isSilent {
			lived = s.heardAt.Sub(s.openedAt)
		}
	}
	s.release()
	if gone.err != nil {
		return gone.err
	}
	if lived >= stable {
		s.attempt, s.isRenewed = 0, false
		s.route.proven()
	}
	delay := gone.hint
	if delay == noHint {
		delay = backoff(s.attempt, s.client.options.Random)
	}
	switch isFailure := !gone.isAnswer && !gone.isOwn && lived < stable; {
	case gone.isStale && !s.isRenewed:
		// A newer token is asked for before the next attempt, which does not wait.
		s.isRenewed = true
		delay = 0
	case isFailure && s.goesOn(ctx, gone):
		delay = 0
	default:
		s.attempt++
	}
	s.retryAt = time.Now().Add(delay)
	s.report(State{Name: "waiting", Transport: over, Delay: delay, Reason: gone.message})
	return nil
}

// goesOn says whether to go on at once after a failure of the transport.
func (s *Subscription) goesOn(ctx context.Context, gone *loss) bool {
	options := s.client.options
	isDoubted := s.route.failed(gone)
	if s.route.flees() {
		return true
	}
	if !isDoubted || len(options.Transports) == 1 {
		return false
	}
	began := time.Now()
	health := request{method: http.MethodGet, path: "/health"}
	response, err := s.client.sendOnce(ctx, health, "", options.OpenTimeout)
	if err != nil || strings.TrimSpace(string(response.body)) != "ok" {
		return false
	}
	// On a line that is quick, more time to open would not help.
	isQuick := time.Since(began) < options.OpenTimeout/4
	return s.route.answered(isQuick, len(options.Transports))
}

func (s *Subscription) release() {
	s.route.end()
	if s.link != nil {
		s.client.register(s.link, false)
		s.link.close()
		s.leave(nil)
		s.link = nil
	}
}
