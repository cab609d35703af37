package throng

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const protocol = "throng.v1"

// The largest frame, for a server whose max-message-bytes is raised.
const frameBytesMax = 64 << 20

const (
	// The size of messages that a server takes unless it names one.
	messageBytes = 64 << 10
	// The bytes of a list of channels, in sizes of a message. A frame of a client may have six.
	listSizesMax = 4
)

var reconnectHint = regexp.MustCompile(`reconnect in (\d+) ms`)

// A socketLink is a WebSocket with the protocol throng.v1. It is open once the server has sent
// welcome.
type socketLink struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	client  *Client
	cursors *cursors
	timeout time.Duration
	conn    *websocket.Conn
	name    string
	// greeted is what the welcome has told.
	greeted []event
	// commands are pending, by ref; live are those confirmed by subscribed. Messages before it are of
	// an earlier subscription.
	commands map[int]map[Target]command
	live     map[*cursor]backlog
	// numbered are channels by their numbers in compact messages.
	numbered map[uint64]numbered
	watchdog *watchdog
	// isCompact: messages come in compact form, many in a frame; the server also takes lists of
	// channels.
	isCompact bool

	mu     sync.Mutex
	opened bool
	pulse  pulse
	// updates are pending, by ref.
	updates map[int]update
	// pings is the number of those without an answer.
	pings int
	ref   int
	// token is that which the server has from this link, auth a newer one that it has not accepted;
	// authRef is the ref of the command with that, while it is unanswered.
	token        string
	auth         string
	authRef      int
	isRefreshing bool
	refreshes    int
}

type command struct {
	cursor    *cursor
	isResumed bool
}

// A numbered channel has the epoch of its ids, with the hyphen. It has no cursor if the server follows
// it for the user.
type numbered struct {
	cursor *cursor
	epoch  string
}

// A backlog is the messages up to this id; empty if there are none.
type backlog string

func newSocketLink(ctx context.Context, client *Client, cursors *cursors, timeout time.Duration) link {
	s := &socketLink{
		client:    client,
		cursors:   cursors,
		timeout:   timeout,
		commands:  map[int]map[Target]command{},
		live:      map[*cursor]backlog{},
		numbered:  map[uint64]numbered{},
		updates:   map[int]update{},
		isCompact: !client.isFull.Load(),
		pulse: pulse{
			heartbeat: client.options.Heartbeat,
			patience:  client.options.RequestTimeout,
		},
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.watchdog = newWatchdog(s.overdue)
	return s
}

func (s *socketLink) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func (s *socketLink) connection() string { return s.name }

// prove connects; open subscribes on the same connection.
func (s *socketLink) prove() error {
	s.token, _ = s.client.tokens.now()
	overdue := late("the WebSocket did not open in time")
	timer := time.AfterFunc(s.timeout, func() { s.cancel(overdue) })
	defer timer.Stop()
	if err := s.dial(); err != nil {
		return err
	}
	text, err := s.read()
	if err != nil {
		return err
	}
	welcome, err := s.frame(text)
	if err != nil {
		return err
	}
	if welcome.Type != "welcome" {
		return unusable(notThrongPeer)
	}
	if !timer.Stop() {
		return overdue
	}
	if welcome.MessageBytesMax > 0 {
		s.client.messageBytesMax.Store(welcome.MessageBytesMax)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened, s.name = true, welcome.Connection
	s.greeted = s.cursors.unread(welcome)
	if welcome.Heartbeat > 0 {
		s.pulse.heartbeat = time.Duration(welcome.Heartbeat * float64(time.Second))
	}
	return nil
}

func (s *socketLink) open() ([]event, error) {
	if !s.isOpen() {
		if err := s.prove(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.pulse.heard(time.Now())
	s.mu.Unlock()
	return s.greeted, s.subscribe()
}

func (s *socketLink) dial() error {
	address := "ws" + strings.TrimPrefix(s.client.url, "http") + "/subscribe"
	// Checked when the client was made.
	query, _ := s.client.options.Params.query()
	if s.isCompact {
		query.Set("envelope", "compact")
		if !s.client.options.NoTime {
			query.Set("time", "true")
		}
	}
	if inbox := s.cursors.inbox(); inbox != "" {
		query.Set("user", inbox)
	}
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	header := http.Header{}
	if s.token != "" {
		header.Set("Authorization", "Bearer "+s.token)
	}
	conn, response, err := websocket.Dial(s.ctx, address, &websocket.DialOptions{
		HTTPClient:   s.client.options.HTTPClient,
		HTTPHeader:   header,
		Subprotocols: []string{protocol},
	})
	if err == nil {
		conn.SetReadLimit(frameBytesMax)
		s.conn = conn
		return nil
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if response == nil || response.StatusCode == http.StatusSwitchingProtocols {
		return lost(fmt.Sprintf("the WebSocket did not open: %v", err))
	}
	// The library keeps the beginning of the body.
	body, _ := io.ReadAll(response.Body)
	return s.refused(&answer{response.StatusCode, response.Header, body})
}

func (s *socketLink) refused(response *answer) error {
	tokens := s.client.tokens
	isUnauthorized := response.status == http.StatusUnauthorized
	hint := response.retryAfter(s.client.options.Random)
	isUnusable := !isTemporary(response.status)
	err, isOwn := response.refusal()
	switch {
	case !isOwn:
		err = s.client.refusal(response)
	case isUnauthorized && tokens.canRenew() && err.Code != "token_revoked":
		tokens.refuse(s.token)
		return &loss{message: err.Message, hint: noHint, isAnswer: true, isStale: true}
	case isUnauthorized || response.status == http.StatusForbidden:
		return err
	case s.isCompact && strings.Contains(err.Message, "`envelope`"):
		// An older server, which has no compact messages.
		s.client.isFull.Store(true)
		return &loss{message: err.Message, isOwn: true}
	}
	// A handshake that a proxy has changed may get another error of the server.
	return &loss{message: err.Message, hint: hint, isUnusable: isUnusable, isOwn: isOwn && !isUnusable}
}

// subscribe sends one command for all channels, or some if they are many. A list is not for presence
// events, and not for an older server.
func (s *socketLink) subscribe() error {
	room, info := 0, s.cursors.shown.now()
	if s.isCompact && !s.cursors.hasPresence && info == nil {
		room = listSizesMax * int(max(s.client.messageBytesMax.Load(), 0))
		if room == 0 {
			room = listSizesMax * messageBytes
		}
	}
	var entries []map[string]any
	asked, size := map[Target]command{}, 0
	for _, each := range s.cursors.all {
		if each.isSilent {
			continue
		}
		entry, err := s.entry(each)
		if err != nil {
			return err
		}
		if info != nil && !each.target.IsUser() {
			entry["info"] = info
		}
		text, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		if size += len(text) + 1; len(entries) > 0 && size > room {
			if err := s.askFor(entries, asked); err != nil {
				return err
			}
			entries, asked, size = nil, map[Target]command{}, len(text)+1
		}
		entries = append(entries, entry)
		asked[each.target] = command{each, each.position != ""}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := s.askFor(entries, asked); err != nil {
		return err
	}
	s.cursors.shown.begin(s, info)
	return nil
}

// entry has the fields of a command for one channel.
func (s *socketLink) entry(each *cursor) (map[string]any, error) {
	kind, name := each.target.parts()
	if each.target.IsUser() {
		// The URL's user follows the inbox from now on, but this cursor may begin earlier.
		if err := s.send(map[string]any{"type": "unsubscribe", kind: name}); err != nil {
			return nil, err
		}
	}
	frame := map[string]any{kind: name}
	if each.wantsState {
		frame["state"] = true
	}
	if each.position != "" {
		frame["since"] = each.position
	} else if s.cursors.history > 0 {
		frame["history"] = s.cursors.history
	}
	if s.cursors.hasPresence && !each.target.IsUser() {
		frame["presence"] = true
	}
	return frame, nil
}

func (s *socketLink) askFor(entries []map[string]any, asked map[Target]command) error {
	frame := map[string]any{"channels": entries}
	if len(entries) == 1 {
		frame = entries[0]
	}
	if s.cursors.paceMs != 0 {
		frame["pace"] = s.cursors.paceMs
	}
	ref := s.nextRef()
	frame["type"], frame["ref"] = "subscribe", ref
	s.commands[ref] = asked
	s.asked()
	return s.send(frame)
}

// acknowledge tells the server that so many more of the frames that asked are handled.
func (s *socketLink) acknowledge(frames int) {
	// If this fails, so does the next read.
	_ = s.send(map[string]any{"type": "ack", "frames": frames})
}

func (s *socketLink) nextRef() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ref++
	return s.ref
}

func (s *socketLink) send(frame map[string]any) error {
	text, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	// A peer that takes nothing would hold up a write that is larger than what the kernel buffers.
	limited, cancel := context.WithTimeoutCause(s.ctx, s.client.options.RequestTimeout, errSilent)
	defer cancel()
	if err := s.conn.Write(limited, websocket.MessageText, text); err != nil {
		if context.Cause(limited) == errSilent {
			return silent()
		}
		return s.ended(err)
	}
	return nil
}

func (s *socketLink) read() ([]byte, error) {
	_, text, err := s.conn.Read(s.ctx)
	if err != nil {
		return nil, s.ended(err)
	}
	return text, nil
}

func (s *socketLink) frame(text []byte) (*fields, error) {
	frame := &fields{}
	if err := parse(text, frame); err != nil {
		return nil, unusable(notThrongPeer)
	}
	return frame, nil
}

// ended is why the connection can be used no more.
func (s *socketLink) ended(err error) error {
	if s.ctx.Err() != nil {
		cause := context.Cause(s.ctx)
		if errors.Is(cause, errSilent) {
			return silent()
		}
		return cause
	}
	var closed websocket.CloseError
	if !errors.As(err, &closed) {
		return lost(fmt.Sprintf("the WebSocket broke: %v", err))
	}
	code, hint := int(closed.Code), noHint
	message := fmt.Sprintf("the WebSocket closed with %d: %s", code, closed.Reason)
	if found := reconnectHint.FindStringSubmatch(closed.Reason); found != nil {
		if ms, err := strconv.ParseInt(found[1], 10, 40); err == nil {
			hint = bounded(time.Duration(ms) * time.Millisecond)
		}
	}
	s.mu.Lock()
	token, isOpen := s.token, s.opened
	s.mu.Unlock()
	tokens := s.client.tokens
	end := closing{code, closed.Reason, hint, isOpen || s.conn.Subprotocol() == protocol}
	if end.isThrong && isStaleToken(code) {
		tokens.refuse(token)
	}
	return end.loss(message, tokens.canRenew(), token != "")
}

// Signs of life.

// asked says that a command is sent.
func (s *socketLink) asked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pulse.asked(time.Now())
	s.watch()
}

// watch sets the watchdog to when something is due. Needs the lock, so that no earlier moment that
// another goroutine sets is lost.
func (s *socketLink) watch() { s.watchdog.set(s.pulse.due()) }

func (s *socketLink) suspect(_, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened {
		s.pulse.doubted(time.Now(), until)
		s.ping()
	}
}

// overdue: nothing has come in time. Sends a ping, or gives up if the server owes something.
func (s *socketLink) overdue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, due := time.Now(), s.pulse.due()
	switch {
	case due.IsZero() || due.After(now):
		s.watch()
	case s.pulse.isWaiting():
		s.cancel(errSilent)
	default:
		s.pulse.pinged(now)
		s.ping()
	}
}

// ping asks for a sign of life, without waiting for a connection that takes nothing. Needs the lock.
func (s *socketLink) ping() {
	s.pings++
	s.watch()
	// If this fails, so does the read.
	go func() { _ = s.send(map[string]any{"type": "ping"}) }()
}

func (s *socketLink) receive() ([]event, error) {
	s.mu.Lock()
	s.pulse.cameBack(time.Now())
	s.watch()
	s.mu.Unlock()
	s.watchdog.arm(0)
	text, err := s.read()
	s.watchdog.disarm()
	s.mu.Lock()
	s.pulse.left(time.Now())
	s.pulse.heard(time.Now())
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if len(text) > 0 && text[0] == '[' {
		return s.takeMany(text)
	}
	frame, err := s.frame(text)
	if err != nil {
		return nil, err
	}
	isAnswer := s.isAnswer(frame)
	var events []event
	if frame.Type == "numbers" {
		err = s.learnNumbers(text)
	} else {
		events, err = s.take(frame)
	}
	if isAnswer {
		s.heard()
	}
	return events, err
}

// heard says that the server has heard this client.
func (s *socketLink) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	isComplete := len(s.commands) == 0 && s.authRef == 0 && s.pings == 0
	s.pulse.answered(time.Now(), isComplete)
}

// isAnswer says whether the server has heard this client. An answer may be behind a backlog, which
// counts for that.
func (s *socketLink) isAnswer(frame *fields) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch frame.Type {
	case "pong":
		s.pings = max(0, s.pings-1)
		return true
	case "message":
		return s.pulse.isWaiting() && isUpTo(frame.ID, string(s.live[s.cursors.of(frame.target())]))
	}
	_, isOurs := s.commands[frame.Ref]
	return isOurs || (s.authRef != 0 && frame.Ref == s.authRef)
}

// Frames.

func (s *socketLink) take(frame *fields) ([]event, error) {
	switch frame.Type {
	case "message", "erased", "gap", "conflated", "presence", "state", "ended":
		each := s.cursors.of(frame.target())
		if _, isLive := s.live[each]; !isLive {
			return nil, nil
		}
		if frame.Type == "presence" {
			return each.see(frame), nil
		}
		if frame.Type == "state" {
			return each.endState(frame.ID)
		}
		if frame.Type == "ended" {
			delete(s.live, each)
			return s.cursors.end(each, frame.ID), nil
		}
		if frame.Type == "conflated" {
			return each.skip(frame.Count), nil
		}
		if frame.Type == "gap" {
			return each.gap(frame.ID, frame.Missed), nil
		}
		return each.take(frame)
	case "unread":
		return s.cursors.unread(frame), nil
	case "updated":
		s.mu.Lock()
		delete(s.updates, frame.Ref)
		s.mu.Unlock()
	case "subscribed":
		asked, isOurs := s.commands[frame.Ref]
		if !isOurs {
			return nil, nil
		}
		delete(s.commands, frame.Ref)
		return s.answered(frame, asked)
	case "expiring":
		s.refresh()
	case "authenticated":
		s.mu.Lock()
		s.token, s.isRefreshing, s.authRef, s.refreshes = s.auth, false, 0, 0
		s.mu.Unlock()
	case "unsubscribed":
		if frame.Code != "" {
			return nil, &Error{Code: frame.Code, Message: frame.Message}
		}
	case "error":
		return nil, s.refusedCommand(frame)
	}
	return nil, nil
}

// takeMany takes the messages of a frame, whose first element is 1 if the server asks when they are
// handled.
func (s *socketLink) takeMany(text []byte) ([]event, error) {
	elements, isWhole := parts(text)
	if !isWhole || len(elements[0]) != 1 {
		return nil, unusable(notThrongPeer)
	}
	isSound := json.Valid(text)
	s.mu.Lock()
	isWaiting := s.pulse.isWaiting()
	s.mu.Unlock()
	events := make([]event, 0, len(elements))
	isAnswer := false
	for _, element := range elements[1:] {
		found, err := parseCompact(element, isSound)
		if err != nil {
			return nil, unusable(notThrongPeer)
		}
		channel := s.numbered[found.number]
		if _, isLive := s.live[channel.cursor]; !isLive {
			continue
		}
		if found.skipped > 0 {
			events = append(events, channel.cursor.skip(found.skipped)...)
			continue
		}
		envelope := found.envelope(channel)
		isAnswer = isAnswer || isWaiting && isUpTo(envelope.ID, string(s.live[channel.cursor]))
		taken, err := channel.cursor.take(&envelope)
		if err != nil {
			return nil, err
		}
		events = append(events, taken...)
	}
	if isAnswer {
		s.heard()
	}
	if elements[0][0] == '1' {
		events = append(events, event{handled: s})
	}
	return events, nil
}

// answered takes the answer to a command for one channel, or for a list.
func (s *socketLink) answered(frame *fields, asked map[Target]command) ([]event, error) {
	if frame.Channels == nil {
		for _, each := range asked {
			return s.subscribed(frame, each), nil
		}
	}
	var answers []channelAnswer
	if err := json.Unmarshal(frame.Channels, &answers); err != nil {
		return nil, unusable(notThrongPeer)
	}
	var events []event
	for index := range answers {
		answer := &answers[index]
		each, isOurs := asked[answer.target()]
		if !isOurs {
			return nil, unusable(notThrongPeer)
		}
		if answer.Error != nil {
			// One of many ends the subscription: its user wants to know which.
			message := answer.target().String() + ": " + answer.Error.Message
			return nil, refusedBy(answer.Error.Code, message)
		}
		events = append(events, s.subscribed(&answer.fields, each)...)
	}
	return events, nil
}

func (s *socketLink) subscribed(frame *fields, asked command) []event {
	s.live[asked.cursor] = backlog(frame.Head)
	if frame.Number != nil {
		epoch, _, _ := splitID(frame.ID)
		s.numbered[*frame.Number] = numbered{asked.cursor, epoch + "-"}
	}
	isLost := asked.isResumed && frame.Recovered != nil && !*frame.Recovered
	return asked.cursor.follow(frame.ID, frame.Head, isLost)
}

// learnNumbers takes the numbers of channels of which nothing else tells them, or that have others
// now.
func (s *socketLink) learnNumbers(text []byte) error {
	var frame struct{ Channels, Users []numbering }
	if err := json.Unmarshal(text, &frame); err != nil {
		return unusable(notThrongPeer)
	}
	for _, each := range frame.Channels {
		s.numbered[each.number] = numbered{s.cursors.of(Channel(each.name)), each.epoch + "-"}
	}
	for _, each := range frame.Users {
		s.numbered[each.number] = numbered{s.cursors.of(User(each.name)), each.epoch + "-"}
	}
	return nil
}

// refusedBy is what the refusal of a channel means.
func refusedBy(code, message string) error {
	if code == "busy" || code == "too_many_requests" {
		return &loss{message: message, hint: noHint, isOwn: true}
	}
	return &Error{Code: code, Message: message}
}

func (s *socketLink) refusedCommand(frame *fields) error {
	err := &Error{Code: frame.Code, Message: frame.Message}
	s.mu.Lock()
	if refused, isUpdate := s.updates[frame.Ref]; isUpdate {
		s.cursors.shown.takeBack(refused)
	}
	delete(s.updates, frame.Ref)
	isAuth, token := s.isRefreshing && frame.Ref == s.authRef, s.auth
	if isAuth {
		s.isRefreshing, s.authRef = false, 0
	}
	s.mu.Unlock()
	if isAuth {
		s.client.tokens.refuse(token)
		// Of another user, or revoked: the next one would be so, too.
		if frame.Code == "forbidden" || frame.Code == "token_revoked" {
			return err
		}
		s.refresh()
		return nil
	}
	if _, isOurs := s.commands[frame.Ref]; !isOurs {
		if frame.Ref == 0 && frame.Code == "forbidden" {
			// A newer token does not grant presence events any more.
			return err
		}
		return nil
	}
	return refusedBy(frame.Code, frame.Message)
}

// refresh sends a newer token. The connection is closed when the present one expires, and not
// before.
func (s *socketLink) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.client.tokens.canRenew() || s.isRefreshing {
		return
	}
	s.isRefreshing = true
	go s.sendNewer(s.token)
}

func (s *socketLink) sendNewer(old string) {
	for s.ctx.Err() == nil {
		s.mu.Lock()
		failures := s.refreshes
		s.refreshes++
		s.mu.Unlock()
		if failures > 0 && !sleep(s.ctx, backoff(failures, s.client.options.Random)) {
			return
		}
		token, err := s.client.tokens.load(s.ctx, old)
		if err != nil {
			continue
		}
		ref := s.nextRef()
		s.mu.Lock()
		s.auth, s.authRef = token, ref
		s.mu.Unlock()
		s.asked()
		_ = s.send(map[string]any{"type": "auth", "token": token, "ref": ref})
		return
	}
}

func (s *socketLink) close() {
	s.cursors.shown.end(s)
	s.watchdog.disarm()
	if s.conn != nil {
		if s.ctx.Err() == nil {
			// A server that is alive gets a close frame; its answer is not waited for.
			timer := time.AfterFunc(s.client.options.RequestTimeout/10, func() { _ = s.conn.CloseNow() })
			go func() {
				_ = s.conn.Close(websocket.StatusNormalClosure, "")
				timer.Stop()
			}()
		} else {
			_ = s.conn.CloseNow()
		}
	}
	s.cancel(context.Canceled)
}
