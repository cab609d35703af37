package throng

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A year, as on the server.
const expiresInMax = 365 * 24 * time.Hour

// A Target is a channel or a user's inbox. Make it with Channel or User.
type Target struct {
	channel, user string
}

// Channel is the channel of this name.
func Channel(name string) Target { return Target{channel: name} }

// User is the inbox of this user, which all of the user's devices follow.
func User(name string) Target { return Target{user: name} }

// Name is the name of the channel or the user.
func (t Target) Name() string { return t.channel + t.user }

// IsUser says whether it is a user's inbox.
func (t Target) IsUser() bool { return t.user != "" }

func (t Target) String() string {
	kind, name := t.parts()
	return kind + " " + name
}

func (t Target) parts() (kind, name string) {
	if t.IsUser() {
		return "user", t.user
	}
	return "channel", t.channel
}

// A Message is one message of a channel.
type Message struct {
	Target Target
	// ID identifies the message: to resume after it, or to page through history. It is empty for a
	// volatile message, which is not kept.
	ID string
	// Time is when the server accepted it. It is zero if it was left out, because of Options.NoTime.
	Time time.Time
	// Data is the body as it was published. JSON may have other white space.
	Data        []byte
	ContentType string
	// Replayed is true for messages older than the subscription, which came because of History or
	// Since. It is false for messages missed during a reconnect.
	Replayed bool
	// Event is the name of its event, and empty if it has none.
	Event string
	// Tags are short facts beside the body: strings and numbers (float64).
	Tags map[string]any
	// From is who published it, set by the server, if the channel shows that.
	From string
	// Replaces is the id of the message in whose place it is, which is erased.
	Replaces string
	// StateKey is the key that it sets, or removes if it is a Tombstone; empty if it has none.
	StateKey  string
	Tombstone bool
}

// Text is the body as a string.
func (m Message) Text() string { return string(m.Data) }

// JSON decodes the body into value.
func (m Message) JSON(value any) error { return json.Unmarshal(m.Data, value) }

// A Gap says that messages of Target are missing here. Where the subscription has the state, it begins
// again.
type Gap struct {
	Target Target
	// ID is where delivery goes on.
	ID string
	// Missed is how many messages are missing, or 0 if the server does not know it.
	Missed int
}

// Conflated says that messages of Target were skipped for newer ones, because this reader was behind
// and its channel has the newest only (lag-policy = "latest"), or their keys have newer values. It is no
// gap.
type Conflated struct {
	Target Target
	// Count is how many, or 0 if the server does not know it.
	Count int
}

// Erased says that messages of Target are erased: the one with the id Erased, or all up to ErasedUpTo.
// It is a notice to readers, and the answer to an erasure.
type Erased struct {
	Target Target
	// ID is that of the notice, which has the place of a message. It is empty in an answer if there
	// never was a message.
	ID         string
	Erased     string
	ErasedUpTo string
	// Messages is, in an answer, how many were erased, or 0 if the server does not know it.
	Messages int
}

// Covers says whether the message with this id is erased.
func (e Erased) Covers(id string) bool {
	return id == e.Erased || isUpTo(id, e.ErasedUpTo)
}

// Ended says that a channel has ended: all of its messages have come. It is the answer to End, too.
type Ended struct {
	Target Target
	// ID is the last id of the channel.
	ID string
}

// A ReadMarker is how far a user has read the inbox or a channel, on whatever device.
type ReadMarker struct {
	// Read is the id of the last message that was read; empty if there is no marker.
	Read string `json:"read"`
	// Unread is the number of messages behind it that the server keeps, at most 10,000; in a channel,
	// 1,000.
	Unread int `json:"unread"`
}

// Unread says how many messages of an inbox or a channel are unread, as the server tells.
type Unread struct {
	User string
	// Channel is the name of the channel; empty for the inbox.
	Channel string
	// ReadMarker is where the user has read to. Its Read is empty, too, if the server does not tell it.
	ReadMarker
}

// A Draft is a message to publish.
type Draft struct {
	Target Target
	// Data is a string, a []byte (a binary message), or anything that encoding/json encodes.
	Data any
	// Key is the idempotency key: repeated within five minutes, it publishes nothing. Random if
	// empty.
	Key string
	// ContentType replaces that of the kind of Data.
	ContentType string
	// Exclude is the name of a connection that does not get the message.
	Exclude string
	// ExpiresIn is the time for which the message is of use: 1 s to a year, in whole seconds. It is
	// kept as long as others of its channel if 0.
	ExpiresIn time.Duration
	// Event is the name of its event: 1 to 128 bytes, and none of the server's own events.
	Event string
	// Tags are at most 16 strings and numbers, of at most 1,024 bytes as JSON.
	Tags map[string]any
	// StateKey is the key whose value it is, 1 to 255 bytes; empty if it has none.
	StateKey string
}

// Published says that the server has the message.
type Published struct {
	// ID is empty if the message is volatile.
	ID string `json:"id"`
	// Subscribers is the number of connections that the message goes to; 0 with Duplicate.
	Subscribers int `json:"subscribers"`
	// Duplicate: the server already had a message with this key; ID is that message's.
	Duplicate bool `json:"duplicate"`
}

// History is a page of messages, oldest first.
type History struct {
	// ID is that of the newest message of the channel.
	ID       string
	Messages []Message
	// More says whether there are further messages in the requested direction.
	More bool
	// Recovered says, with After, whether the server still has all messages after that id.
	Recovered bool
	// Unreadable are the messages of the page that cannot be decoded.
	Unreadable []Unreadable
}

// Presence is who follows a channel.
type Presence struct {
	Connections int      `json:"connections"`
	Users       []string `json:"users"`
	// More says whether there are more users than listed.
	More bool `json:"more"`
	// Partial says that some may be missing, because a node of several cannot be reached. In an event
	// about members: when the list came.
	Partial bool `json:"partial"`
}

// An Absence is a user who is no longer there.
type Absence struct {
	User string
	// LastSeen is when the user's last connection was found to be gone.
	LastSeen time.Time
}

// A PresenceEvent says who follows a channel now, and what has changed since the event before.
type PresenceEvent struct {
	Target Target
	Presence
	// Time is when the server looked.
	Time time.Time
	// Joined and Left are empty in the first event of a connection, and where Users is not all of
	// them.
	Joined []string
	Left   []Absence
	// Members are those of a channel that has a list of them, by their keys, which Joined and Left then
	// have; nil for other channels. Connections is their number.
	Members map[string]Member
	// Updated are the keys of members that show something else than before.
	Updated []string
}

// fields is any object of the protocol: an envelope, a frame or an answer.
type fields struct {
	Type        string          `json:"type"`
	Channel     *string         `json:"channel"`
	User        *string         `json:"user"`
	ID          string          `json:"id"`
	Head        string          `json:"head"`
	Time        int64           `json:"time"`
	Data        json.RawMessage `json:"data"`
	Encoding    string          `json:"encoding"`
	ContentType string          `json:"content_type"`
	Event       string          `json:"event"`
	Member      *Member         `json:"member"`
	Tags        map[string]any  `json:"tags"`
	From        string          `json:"from"`
	Replaces    string          `json:"replaces"`
	StateKey    string          `json:"state_key"`
	Tombstone   bool            `json:"tombstone"`
	Erased      string          `json:"erased"`
	ErasedUpTo  string          `json:"erased_up_to"`
	Missed      int             `json:"missed"`
	// Count is of a conflation.
	Count int `json:"count"`
	// Number is that of a channel in compact messages, and Channels those of a list.
	Number     *uint64         `json:"number"`
	Channels   json.RawMessage `json:"channels"`
	Recovered  *bool           `json:"recovered"`
	Ref        int             `json:"ref"`
	Connection string          `json:"connection"`
	Heartbeat  float64         `json:"heartbeat"`
	Code       string          `json:"code"`
	CloseCode  int             `json:"close_code"`
	Message    string          `json:"message"`
	// Read and Unread are of a read marker; a welcome has the latter.
	Read   string `json:"read"`
	Unread *int   `json:"unread"`
	// MessageBytesMax is of a welcome.
	MessageBytesMax int64 `json:"max_message_bytes"`
	presenceFields
	// unreadable is why only the channel and the id of a message could be read.
	unreadable error
}

// isNotice says whether they tell that messages are erased.
func (f *fields) isNotice() bool { return f.Erased != "" || f.ErasedUpTo != "" }

// channelAnswer is the answer for one channel of a list.
type channelAnswer struct {
	fields
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// presenceFields are those of a presence event.
type presenceFields struct {
	Presence
	Joined []string `json:"joined"`
	Left   []struct {
		User     string `json:"user"`
		LastSeen int64  `json:"last_seen"`
	} `json:"left"`
}

func (f *fields) target() Target {
	switch {
	case f.User != nil:
		return User(*f.User)
	case f.Channel != nil:
		return Channel(*f.Channel)
	}
	return Target{}
}

// toMessage is the message in an envelope.
func (f *fields) toMessage(replayed bool) (Message, error) {
	if f.unreadable != nil {
		return Message{}, f.unreadable
	}
	if len(f.Data) == 0 {
		return Message{}, errors.New("a message without data")
	}
	message := Message{
		Target:      f.target(),
		ID:          f.ID,
		Data:        f.Data,
		ContentType: "application/json",
		Replayed:    replayed,
		Event:       f.Event,
		Tags:        f.Tags,
		From:        f.From,
		Replaces:    f.Replaces,
		StateKey:    f.StateKey,
		Tombstone:   f.Tombstone,
	}
	if f.Time != 0 {
		message.Time = time.UnixMilli(f.Time)
	}
	if f.Data[0] == '"' {
		var text string
		if err := json.Unmarshal(f.Data, &text); err != nil {
			return message, err
		}
		message.Data, message.ContentType = []byte(text), "text/plain; charset=utf-8"
	}
	if f.Encoding == "base64" {
		if f.Data[0] != '"' {
			return message, errors.New("base64 that is no string")
		}
		bytes, err := base64.StdEncoding.DecodeString(string(message.Data))
		if err != nil {
			return message, err
		}
		message.Data, message.ContentType = bytes, "application/octet-stream"
	}
	if f.ContentType != "" {
		message.ContentType = f.ContentType
	}
	return message, nil
}

func (f *fields) toUnreadable(cause error) Unreadable {
	return Unreadable{Target: f.target(), ID: f.ID, Reason: cause.Error()}
}

func (f *fields) toPresence() PresenceEvent {
	event := PresenceEvent{
		Target:   f.target(),
		Presence: f.Presence,
		Time:     time.UnixMilli(f.Time),
		Joined:   f.Joined,
	}
	event.Partial = f.Partial
	for _, each := range f.Left {
		event.Left = append(event.Left, Absence{User: each.User, LastSeen: time.UnixMilli(each.LastSeen)})
	}
	return event
}

// isUpTo says whether id is last or before it; false if they are of different epochs.
func isUpTo(id, last string) bool {
	epoch, offset, ok := splitID(id)
	lastEpoch, lastOffset, lastOK := splitID(last)
	return ok && lastOK && epoch == lastEpoch && offset <= lastOffset
}

// idBefore is an id after which this message comes next.
func idBefore(id string) string {
	epoch, offset, ok := splitID(id)
	if !ok || offset == 0 {
		return ""
	}
	return epoch + "-" + strconv.FormatUint(offset-1, 10)
}

func splitID(id string) (epoch string, offset uint64, ok bool) {
	dash := strings.LastIndexByte(id, '-')
	if dash < 0 {
		return "", 0, false
	}
	offset, err := strconv.ParseUint(id[dash+1:], 10, 64)
	return id[:dash], offset, err == nil
}

// body is that of a publication, with its content type.
func (d *Draft) body() ([]byte, string, error) {
	switch data := d.Data.(type) {
	case string:
		if !utf8.ValidString(data) {
			return nil, "", d.refuse("bad_utf8", "the text is not UTF-8")
		}
		return []byte(data), "text/plain; charset=utf-8", nil
	case []byte:
		return data, "application/octet-stream", nil
	}
	data, err := json.Marshal(d.Data)
	if err != nil {
		err = fmt.Errorf("throng: the data has no JSON: %w", err)
	}
	return data, "application/json", err
}

// refuse is the error of a draft that is never sent.
func (d *Draft) refuse(code, message string) *Error {
	return &Error{Code: code, Message: message, Outcome: Unpublished, Key: d.Key}
}

// prepare gives the draft a key, and refuses what no header may have: it could never be sent.
func (d *Draft) prepare() error {
	for name, text := range map[string]string{"Key": d.Key, "ContentType": d.ContentType, "Exclude": d.Exclude} {
		if !isHeaderText(text) {
			return fmt.Errorf("throng: the %s %q is not printable ASCII", name, text)
		}
	}
	if d.ExpiresIn != 0 && (d.ExpiresIn < time.Second || d.ExpiresIn > expiresInMax) {
		return fmt.Errorf("throng: ExpiresIn must be from 1s to %v, not %v", expiresInMax, d.ExpiresIn)
	}
	if !utf8.ValidString(d.Event) || strings.ContainsFunc(d.Event, unicode.IsControl) {
		return fmt.Errorf("throng: the Event %q is not a line of UTF-8", d.Event)
	}
	if !utf8.ValidString(d.StateKey) || strings.ContainsFunc(d.StateKey, unicode.IsControl) {
		return fmt.Errorf("throng: the StateKey %q is not a line of UTF-8", d.StateKey)
	}
	if _, err := json.Marshal(d.Tags); err != nil {
		return fmt.Errorf("throng: the tags have no JSON: %w", err)
	}
	if d.Key == "" {
		d.Key = randomKey()
	}
	return nil
}

// encoded is the body, checked for what the server would refuse anyway.
func (d *Draft) encoded(bytesMax int64) ([]byte, string, error) {
	if err := d.Target.checkUse(); err != nil {
		return nil, "", d.refuse(err.Code, err.Message)
	}
	body, contentType, err := d.body()
	if err != nil {
		return nil, "", err
	}
	if bytesMax > 0 && int64(len(body)) > bytesMax {
		message := fmt.Sprintf("the message has %d bytes, and the server takes %d", len(body), bytesMax)
		return nil, "", d.refuse("too_large", message)
	}
	if d.ContentType != "" {
		contentType = d.ContentType
	}
	return body, contentType, nil
}

// header is that of a publication.
func (d *Draft) header(contentType string) map[string]string {
	header := map[string]string{"Content-Type": contentType, "Idempotency-Key": d.Key}
	if d.Exclude != "" {
		header["Throng-Exclude"] = d.Exclude
	}
	if d.ExpiresIn != 0 {
		header["Throng-Expires-In"] = strconv.FormatInt(wholeSeconds(d.ExpiresIn), 10)
	}
	if d.Event != "" {
		header["Throng-Event"] = d.Event
	}
	if d.StateKey != "" {
		header["Throng-State-Key"] = d.StateKey
	}
	if len(d.Tags) > 0 {
		// Checked by prepare.
		tags, _ := json.Marshal(d.Tags)
		header["Throng-Tags"] = string(tags)
	}
	return header
}

// wholeSeconds counts the rest of a second as one.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// line is that of a batch.
func (d *Draft) line() ([]byte, error) {
	kind, name := d.Target.parts()
	named := d.fields()
	named[kind], named["key"] = name, d.Key
	line, err := json.Marshal(named)
	return append(line, '\n'), err
}

// fields are those of a message without its target and its idempotency key.
func (d *Draft) fields() map[string]any {
	named := map[string]any{}
	if bytes, isBytes := d.Data.([]byte); isBytes {
		named["data"], named["encoding"] = base64.StdEncoding.EncodeToString(bytes), "base64"
	} else {
		named["data"] = d.Data
	}
	if d.ContentType != "" {
		named["content_type"] = d.ContentType
	}
	if d.Exclude != "" {
		named["exclude"] = d.Exclude
	}
	if d.ExpiresIn != 0 {
		named["expires_in"] = wholeSeconds(d.ExpiresIn)
	}
	if d.Event != "" {
		named["event"] = d.Event
	}
	if d.StateKey != "" {
		named["state_key"] = d.StateKey
	}
	if len(d.Tags) > 0 {
		named["tags"] = d.Tags
	}
	return named
}

func randomKey() string {
	key := make([]byte, 16)
	// It never fails: it ends the program if the system has no randomness.
	_, _ = rand.Read(key)
	return hex.EncodeToString(key)
}
