package throng

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"net/http"
	"net/url"
)

// A StateEnd says that all values of the keys of Target have come, as they were at the message ID.
type StateEnd struct {
	Target Target
	ID     string
}

// A Change says that a key has another value, or none.
type Change struct {
	Key string
	// Message has set the key. It is empty if the key is gone because of an erasure or a gap.
	Message   Message
	IsRemoved bool
}

// A ChannelState follows a channel, and keeps the newest message of each of its keys. One goroutine at
// a time may use it.
type ChannelState struct {
	// Subscription is that of the channel. Set its functions before Ready and Changes.
	Subscription *Subscription
	isComplete   bool
	messages     map[string]Message
	// next has the messages of a state that has begun, and is not complete. It is nil otherwise.
	next    map[string]Message
	changes []Change
}

// State follows a channel and keeps its state.
func (c *Client) State(target Target) *ChannelState {
	subscription := c.Subscribe(target)
	subscription.State = true
	return &ChannelState{
		Subscription: subscription,
		messages:     map[string]Message{},
		next:         map[string]Message{},
	}
}

// IsComplete says whether it is the channel's state: until then, keys are missing.
func (s *ChannelState) IsComplete() bool { return s.isComplete }

// Get is the message that has set a key, as far as the changes have been taken.
func (s *ChannelState) Get(key string) (Message, bool) {
	message, isThere := s.messages[key]
	return message, isThere
}

// All yields the keys with the messages that have set them.
func (s *ChannelState) All() iter.Seq2[string, Message] { return maps.All(s.messages) }

// Len is the number of keys.
func (s *ChannelState) Len() int { return len(s.messages) }

// Ready waits until the state is complete, and closes the connection: Changes goes on from there.
func (s *ChannelState) Ready(ctx context.Context) error {
	if s.isComplete {
		return nil
	}
	for next, err := range s.Subscription.events(ctx) {
		if err != nil {
			return err
		}
		s.take(next)
		if s.isComplete {
			s.changes = nil
			return nil
		}
	}
	return ctx.Err()
}

// Changes yields each change, over any number of reconnects, and keeps what it yields. Leaving the
// loop closes the connection, and Changes called again resumes. It ends as Messages does.
func (s *ChannelState) Changes(ctx context.Context) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		for next, err := range s.Subscription.events(ctx) {
			if err != nil {
				yield(Change{}, err)
				return
			}
			s.take(next)
			for len(s.changes) > 0 {
				change := s.changes[0]
				s.changes = s.changes[1:]
				if !yield(change, nil) {
					return
				}
			}
		}
	}
}

func (s *ChannelState) take(next event) {
	switch {
	case next.gap != nil:
		// Keys may be gone of which nothing will tell: all others come again.
		s.next = map[string]Message{}
	case next.stateEnd != nil:
		before := s.messages
		if s.next != nil {
			s.messages, s.next = s.next, nil
		}
		s.isComplete = true
		for key := range before {
			if _, isThere := s.messages[key]; !isThere {
				s.changes = append(s.changes, Change{Key: key, IsRemoved: true})
			}
		}
	case next.erased != nil:
		s.forget(*next.erased)
	case next.message != nil && next.message.StateKey != "":
		s.set(*next.message)
	}
}

func (s *ChannelState) set(message Message) {
	for _, messages := range []map[string]Message{s.messages, s.next} {
		switch {
		case messages == nil:
		case message.Tombstone:
			delete(messages, message.StateKey)
		default:
			messages[message.StateKey] = message
		}
	}
	s.changes = append(s.changes, Change{message.StateKey, message, message.Tombstone})
}

func (s *ChannelState) forget(notice Erased) {
	maps.DeleteFunc(s.next, func(_ string, it Message) bool { return notice.Covers(it.ID) })
	for key, it := range s.messages {
		if notice.Covers(it.ID) {
			delete(s.messages, key)
			s.changes = append(s.changes, Change{Key: key, IsRemoved: true})
		}
	}
}

// Set sets the value of a key, and tries again as PublishDraft does.
func (c *Client) Set(ctx context.Context, target Target, key string, data any) (Published, error) {
	return c.PublishDraft(ctx, Draft{Target: target, Data: data, StateKey: key})
}

// SetIf sets the StateKey of a draft if its value is that of the message with this id, or, if the id
// is empty, if the key has none; otherwise the error has the code "conflict". It makes one attempt,
// without the Key of the draft, and returns the id of the message.
func (c *Client) SetIf(ctx context.Context, draft Draft, id string) (string, error) {
	if draft.StateKey == "" {
		return "", errNoKey
	}
	if err := draft.prepare(); err != nil {
		return "", err
	}
	body, contentType, err := draft.encoded(c.messageBytesMax.Load())
	if err != nil {
		return "", err
	}
	header := draft.header(contentType)
	delete(header, "Idempotency-Key")
	delete(header, "Throng-State-Key")
	if id == "" {
		header["If-None-Match"] = "*"
	} else {
		header["If-Match"] = `"` + id + `"`
	}
	return c.change(ctx, http.MethodPut, draft.Target, draft.StateKey, header, body)
}

// Remove removes a key, and returns the id of its tombstone.
func (c *Client) Remove(ctx context.Context, target Target, key string) (string, error) {
	return c.change(ctx, http.MethodDelete, target, key, nil, nil)
}

// RemoveIf removes a key if its value is that of the message with this id; otherwise the error has the
// code "conflict".
func (c *Client) RemoveIf(ctx context.Context, target Target, key, id string) (string, error) {
	header := map[string]string{"If-Match": `"` + id + `"`}
	return c.change(ctx, http.MethodDelete, target, key, header, nil)
}

var errNoKey = errors.New("throng: name a key")

func (c *Client) change(
	ctx context.Context, method string, target Target, key string, header map[string]string, body []byte,
) (string, error) {
	if key == "" {
		return "", errNoKey
	}
	kind, name := target.parts()
	path := "/state?" + url.Values{kind: {name}, "key": {key}}.Encode()
	var found struct {
		ID string `json:"id"`
	}
	read := func(body []byte) error { return json.Unmarshal(body, &found) }
	err := c.ask(ctx, target, request{method, path, header, body}, read)
	return found.ID, err
}
