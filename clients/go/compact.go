package throng

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
)

// A compact message as it travels: [number, offset, data], then its time if that was asked for, and an
// object with whatever else it has. A volatile one has no offset, and so no id. Where messages were
// skipped there is [number, -count] in their place.
type compact struct {
	number  uint64
	skipped int
	// offset is empty for a volatile message.
	offset string
	fields fields
}

var errNotCompact = errors.New("it is no compact message")

// parseCompact reads an item of a frame. isSound says that the frame is known to be JSON: it is not
// checked again.
func parseCompact(text []byte, isSound bool) (compact, error) {
	var found compact
	members, _ := parts(text)
	if len(members) < 2 || text[0] != '[' {
		return found, errNotCompact
	}
	var err error
	if found.number, err = strconv.ParseUint(string(members[0]), 10, 64); err != nil {
		return found, err
	}
	if len(members) == 2 {
		found.skipped, err = strconv.Atoi(string(members[1]))
		if found.skipped = -found.skipped; found.skipped < 1 {
			err = errNotCompact
		}
		return found, err
	}
	if offset := string(members[1]); offset != "null" {
		if _, err := strconv.ParseUint(offset, 10, 64); err != nil {
			return found, err
		}
		found.offset = offset
	}
	if !isSound && !json.Valid(text) {
		found.fields.unreadable = errors.New("it cannot be read")
	}
	// A copy, so that a message that is kept does not keep all of its frame.
	found.fields.Data = bytes.Clone(members[2])
	for _, more := range members[3:] {
		if more[0] == '{' {
			err = found.readMore(more)
		} else {
			found.fields.Time, err = strconv.ParseInt(string(more), 10, 64)
		}
		if err != nil {
			found.fields.unreadable = err
		}
	}
	return found, nil
}

func (c *compact) readMore(text []byte) error {
	var more struct {
		Encoding    string `json:"encoding"`
		ContentType string `json:"content_type"`
		Event       string `json:"event"`
		From        string `json:"from"`
		Replaces    string `json:"replaces"`
		StateKey    string `json:"state_key"`
		Tombstone   bool   `json:"tombstone"`
		Erased      string `json:"erased"`
		ErasedUpTo  string `json:"erased_up_to"`
		// Strings and numbers.
		Tags map[string]any `json:"tags"`
	}
	err := json.Unmarshal(text, &more)
	c.fields.Encoding, c.fields.ContentType = more.Encoding, more.ContentType
	c.fields.Event, c.fields.Tags, c.fields.From = more.Event, more.Tags, more.From
	c.fields.StateKey, c.fields.Tombstone = more.StateKey, more.Tombstone
	c.fields.Replaces, c.fields.Erased, c.fields.ErasedUpTo = more.Replaces, more.Erased, more.ErasedUpTo
	return err
}

// envelope is the same message as others transports have it.
func (c *compact) envelope(channel numbered) fields {
	envelope := c.fields
	if channel.cursor.target.IsUser() {
		envelope.User = &channel.cursor.target.user
	} else {
		envelope.Channel = &channel.cursor.target.channel
	}
	if c.offset != "" {
		envelope.ID = channel.epoch + c.offset
	}
	return envelope
}

// A numbering says the number of a channel: [name, number, epoch].
type numbering struct {
	name   string
	number uint64
	epoch  string
}

func (n *numbering) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&n.name, &n.number, &n.epoch})
}
