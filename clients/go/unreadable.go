package throng

import (
	"bytes"
	"encoding/json"
	"errors"
)

// Unreadable says that a message cannot be decoded: encoding/json reads at most 10,000 levels, for
// instance. The subscription goes on behind it.
type Unreadable struct {
	Target Target
	// ID is the message's: history has it, too.
	ID string
	// Reason is one sentence.
	Reason string
}

// types are those of frames and envelopes that a client takes. A newer server may have others.
var types = map[string]bool{
	"welcome": true, "message": true, "erased": true, "gap": true, "conflated": true, "presence": true, "state": true, "subscribed": true,
	"unread":       true,
	"unsubscribed": true, "expiring": true, "authenticated": true, "error": true, "pong": true,
}

// parse reads an object of the protocol. Of a message that cannot be read it finds the channel and
// the id, and unreadable says why; of types that it does not know, nothing else. Other objects that
// cannot be read are errors, and so is a text that breaks off.
func parse(text []byte, into *fields) error {
	cause := json.Unmarshal(text, into)
	if cause == nil {
		return nil
	}
	*into = fields{}
	members, isWhole := parts(text)
	if !isWhole {
		return cause
	}
	for index := 0; index+1 < len(members); index += 2 {
		var name, value string
		if json.Unmarshal(members[index], &name) != nil || json.Unmarshal(members[index+1], &value) != nil {
			continue
		}
		switch name {
		case "type":
			into.Type = value
		case "channel":
			into.Channel = &value
		case "user":
			into.User = &value
		case "id":
			into.ID = value
		}
	}
	if into.Type != "" && !types[into.Type] {
		return nil
	}
	if into.Type != "message" || into.ID == "" || into.target() == (Target{}) {
		return cause
	}
	into.unreadable = cause
	return nil
}

// parts splits an object or an array: names and values in turn, or elements. It goes into any
// number of levels, and checks nothing but brackets. isWhole is false for a text that breaks off.
func parts(text []byte) (found [][]byte, isWhole bool) {
	depth, start := 0, 0
	for at := 0; at < len(text); at++ {
		isEnd := false
		switch text[at] {
		case '"':
			for at++; at < len(text) && text[at] != '"'; at++ {
				if text[at] == '\\' {
					at++
				}
			}
		case '{', '[':
			if depth++; depth == 1 {
				start = at + 1
			}
		case '}', ']':
			depth--
			isEnd, isWhole = depth == 0, depth == 0
		case ',', ':':
			isEnd = depth == 1
		}
		if isEnd {
			found = append(found, bytes.TrimSpace(text[start:at]))
			start = at + 1
		}
		if isWhole {
			return found, len(bytes.TrimSpace(text[at+1:])) == 0
		}
	}
	return found, false
}

// parseHistory reads a page of which single messages may be unreadable.
func parseHistory(text []byte) (history History, err error) {
	members, _ := parts(text)
	err = errors.New("there are no messages in it")
	for index := 0; index+1 < len(members); index += 2 {
		value := members[index+1]
		var failed error
		switch string(members[index]) {
		case `"id"`:
			failed = json.Unmarshal(value, &history.ID)
		case `"more"`:
			failed = json.Unmarshal(value, &history.More)
		case `"recovered"`:
			failed = json.Unmarshal(value, &history.Recovered)
		case `"messages"`:
			envelopes, _ := parts(value)
			err = history.add(envelopes)
		}
		if failed != nil {
			return history, failed
		}
	}
	return history, err
}

func (h *History) add(envelopes [][]byte) error {
	for _, text := range envelopes {
		if len(text) == 0 {
			continue
		}
		var envelope fields
		if err := parse(text, &envelope); err != nil {
			return err
		}
		if envelope.ID == "" {
			return errors.New("a message without an id")
		}
		if envelope.isNotice() {
			continue
		}
		message, err := envelope.toMessage(true)
		switch {
		case err == nil:
			h.Messages = append(h.Messages, message)
		default:
			h.Unreadable = append(h.Unreadable, envelope.toUnreadable(err))
		}
	}
	return nil
}
