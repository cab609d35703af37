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
	// telling is held while the server is told, so that it hears the newest last.
	telling sync.Mutex
}

// An update is what the server is told to show, in place of what was shown before.
type update struct{ info, before json.RawMessage }

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
	before := s.shown.now()
	if link := s.shown.set(object); link != nil {
		link.show(before)
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

// now returns what the subscription shows.
func (s *shown) now() json.RawMessage {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// begin makes link, which has asked for its channels and shown info there, the one that tells what
// comes, and what has come meanwhile.
func (s *shown) begin(link *socketLink, info json.RawMessage) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.link = link
	isNewer := !bytes.Equal(s.info, info)
	s.mu.Unlock()
	if isNewer {
		link.show(info)
	}
}

// takeBack shows what was shown before a refused update: the next subscription would be refused for it,
// too.
func (s *shown) takeBack(refused update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Equal(s.info, refused.info) {
		s.info = refused.before
	}
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
func (s *socketLink) show(before json.RawMessage) {
	s.cursors.shown.telling.Lock()
	defer s.cursors.shown.telling.Unlock()
	info := s.cursors.shown.now()
	for _, each := range s.cursors.followed() {
		if each.target.IsUser() {
			continue
		}
		kind, name := each.target.parts()
		ref := s.nextRef()
		s.mu.Lock()
		s.updates[ref] = update{info, before}
		s.mu.Unlock()
		frame := map[string]any{"type": "update", kind: name, "info": info, "ref": ref}
		if s.send(frame) != nil {
			return
		}
	}
}
