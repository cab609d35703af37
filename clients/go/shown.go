package throng

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync"
)

var errInfo = errors.New("throng: what a member shows is a JSON object")

// shown is what a subscription shows to the other members of its channels. Any goroutine may use it.
type shown struct {
	mu sync.Mutex
	// info is a JSON object, or nil.
	info json.RawMessage
	// link is the one that has subscribed.
	link *socketLink
}

func objectOf(info any) (json.RawMessage, error) {
	text, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(text, []byte("{")) {
		return nil, errInfo
	}
	return text, nil
}

// Update shows something else to the other members of the channels, in place of Info. Any goroutine may
// call it, once Messages has begun.
func (s *Subscription) Update(info any) error {
	object, err := objectOf(info)
	if err != nil {
		return err
	}
	if link := s.shown.set(object); link != nil {
		link.show(object)
	}
	return nil
}

// set has the subscription show an object from now on, and returns the link that has to tell it.
func (s *shown) set(object json.RawMessage) *socketLink {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info = object
	return s.link
}

// begin makes link the one that has subscribed, and returns what it shows.
func (s *shown) begin(link *socketLink) json.RawMessage {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = link
	return s.info
}

// end takes that a link is gone.
func (s *shown) end(link *socketLink) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == link {
		s.link = nil
	}
}

// show tells the server what the client shows from now on. If this fails, so does the next read, and
// the next link begins with it.
func (s *socketLink) show(info json.RawMessage) {
	for _, each := range s.cursors.followed() {
		if each.target.IsUser() {
			continue
		}
		kind, name := each.target.parts()
		frame := map[string]any{"type": "update", kind: name, "info": info, "ref": s.nextRef()}
		if s.send(frame) != nil {
			return
		}
	}
}
