package throng

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"
)

const (
	// A link open for this long was stable: after its loss, the backoff starts over.
	stable = 10 * time.Second
	// Failures in a row after which the next transport is tried.
	failuresMax = 2
)

// A State is what the connection of a subscription does now.
type State struct {
	// Name is connecting, open or waiting.
	Name      string
	Transport Transport
	// Delay is the time until the next attempt, and Reason why the connection was lost; both while
	// it waits.
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
	// OnGap is called where messages are missing, before the next message.
	OnGap func(Gap)
	// OnPresence is called with who follows each channel: at once, and on each change. Where the server
	// has no presence events, or not for this client, the subscription ends with its error.
	OnPresence func(PresenceEvent)
	// OnState is called when the connection opens or is lost.
	OnState func(State)

	// pending are the events that have arrived and are not taken yet; taken are the last ids of those
	// that are.
	pending   []event
	taken     map[Target]string
	client    *Client
	targets   []Target
	cursors   *cursors
	link      link
	transport int
	failures  int
	attempt   int
	openedAt  time.Time
	retryAt   time.Time
}

// Subscribe follows channels, and at most one user's inbox. Nothing happens before Messages.
func (c *Client) Subscribe(targets ...Target) *Subscription {
	return &Subscription{client: c, targets: targets, taken: map[Target]string{}}
}

// Messages yields each message of a channel once and in order, over any number of reconnects; if
// messages are missing, OnGap is called before the next one. It is read as fast as the loop takes
// messages. Leaving the loop closes the connection, and Messages called again resumes.
//
// An error ends it: that of the context, or an *Error if the server refuses the subscription for
// good. One goroutine at a time may iterate.
func (s *Subscription) Messages(ctx context.Context) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		defer s.release()
		err := s.start()
		var events []event
		for ; err == nil; events, err = s.next(ctx) {
			s.pending = append(s.pending, events...)
			for len(s.pending) > 0 {
				message := s.take()
				if message != nil && !yield(*message, nil) {
					return
				}
			}
		}
		yield(Message{}, err)
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
	for _, each := range s.cursors.all {
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
			positions[target] = s.cursors.of(target).first
		}
	}
	return positions
}

// take takes the next event. It returns the message, if it is one.
func (s *Subscription) take() *Message {
	next := s.pending[0]
	s.pending = s.pending[1:]
	if next.presence != nil {
		s.OnPresence(*next.presence)
		return nil
	}
	target, id, _ := next.place()
	s.taken[target] = id
	if next.gap != nil && s.OnGap != nil {
		s.OnGap(*next.gap)
	}
	return next.message
}

func (s *Subscription) start() error {
	if s.cursors != nil {
		return nil
	}
	inboxes := 0
	seen := map[Target]bool{}
	made := &cursors{history: s.History, hasPresence: s.OnPresence != nil}
	var last []*cursor
	for _, target := range s.targets {
		if seen[target] || target == (Target{}) {
			return errors.New("throng: a channel is named twice, or has no name")
		}
		seen[target] = true
		position, hasSince := s.Since[target]
		if len(s.Since) > 0 && !hasSince {
			return errors.New("throng: Since has an id for each channel, or for none")
		}
		each := &cursor{target: target, position: position}
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

func (s *Subscription) current() Transport { return s.client.options.Transports[s.transport] }

func (s *Subscription) report(name string, delay time.Duration, reason string) {
	if s.OnState != nil {
		s.OnState(State{Name: name, Transport: s.current(), Delay: delay, Reason: reason})
	}
}

// next returns the next events; there may be none.
func (s *Subscription) next(ctx context.Context) ([]event, error) {
	var events []event
	var err error
	if s.link == nil {
		events, err = s.open(ctx)
	} else {
		events, err = s.link.receive()
	}
	var gone *loss
	switch {
	case err == nil:
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
				return nil, &loss{message: refused.Message, hint: noHint, isAnswer: true}
			}
			return nil, err
		}
	}
	s.report("connecting", 0, "")
	s.link = links[s.current()](ctx, s.client, s.cursors)
	s.client.register(s.link, true)
	events, err := s.link.open()
	if err != nil {
		return nil, err
	}
	s.openedAt = time.Now()
	s.failures = 0
	s.report("open", 0, "")
	return events, nil
}

func (s *Subscription) lost(ctx context.Context, gone *loss) error {
	wasOpen := s.link != nil && s.link.isOpen()
	s.release()
	if gone.err != nil {
		return gone.err
	}
	if wasOpen && time.Since(s.openedAt) >= stable {
		s.attempt = 0
	}
	if !wasOpen && gone.hint == noHint && !gone.isAnswer {
		s.failures++
		if s.fallsBack(ctx, gone) {
			s.transport++
			s.failures = 0
			return nil
		}
	}
	delay := gone.hint
	if delay == noHint {
		delay = backoff(s.attempt, s.client.options.Random)
	}
	s.attempt++
	s.retryAt = time.Now().Add(delay)
	s.report("waiting", delay, gone.message)
	return nil
}

// fallsBack says whether to try the next transport: only if the server answers while this one
// fails.
func (s *Subscription) fallsBack(ctx context.Context, gone *loss) bool {
	options := s.client.options
	if s.transport+1 == len(options.Transports) || (!gone.isUnusable && s.failures < failuresMax) {
		return false
	}
	health := request{method: http.MethodGet, path: "/health"}
	response, err := s.client.sendOnce(ctx, health, "", options.OpenTimeout)
	return err == nil && response.isOK()
}

func (s *Subscription) release() {
	if s.link != nil {
		s.client.register(s.link, false)
		s.link.close()
		s.link = nil
	}
}
