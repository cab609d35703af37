package throng

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Statuses after which the server would refuse the same request again, over any transport.
var finalStatuses = map[int]bool{400: true, 401: true, 403: true}

// httpLink is what SSE and long-poll have in common: a link names all of its channels in one
// request.
type httpLink struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	client   *Client
	cursors  *cursors
	timeout  time.Duration
	watchdog *watchdog
	mu       sync.Mutex
	opened   bool
	heardAt  time.Time
}

func newHTTPLink(ctx context.Context, client *Client, cursors *cursors, timeout time.Duration) httpLink {
	inner, cancel := context.WithCancelCause(ctx)
	return httpLink{
		ctx: inner, cancel: cancel, client: client, cursors: cursors, timeout: timeout,
		watchdog: newWatchdog(func() { cancel(errSilent) }),
	}
}

func (h *httpLink) isOpen() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.opened
}

func (h *httpLink) suspect(since, until time.Time) {
	h.mu.Lock()
	isSilent := h.opened && h.heardAt.Before(since)
	h.mu.Unlock()
	if isSilent {
		h.watchdog.hasten(until)
	}
}

func (h *httpLink) setOpen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opened, h.heardAt = true, time.Now()
}

func (h *httpLink) close() {
	h.watchdog.disarm()
	h.cancel(context.Canceled)
}

// url is the path that follows all channels, from their positions or from now.
func (h *httpLink) url(query url.Values, isFromNow bool) string {
	for _, each := range h.cursors.followed() {
		kind, name := each.target.parts()
		query.Add(kind, name)
	}
	query.Set("envelope", "true")
	if isFromNow {
		// Without a look at the positions, which another goroutine may change.
		return "/subscribe?" + query.Encode()
	}
	if _, all := h.cursors.havePositions(); all {
		query.Set("since", strings.Join(h.cursors.positions(), ","))
	} else if h.cursors.history > 0 {
		query.Set("history", strconv.Itoa(h.cursors.history))
	}
	return "/subscribe?" + query.Encode()
}

// get is the response to a short request.
func (h *httpLink) get(method, path string, timeout time.Duration) (*answer, error) {
	response, err := h.client.send(h.ctx, request{method: method, path: path}, timeout)
	var unanswered *noAnswer
	var refused *Error
	switch {
	case h.ctx.Err() != nil:
		return nil, h.ended()
	case errors.As(err, &unanswered):
		return nil, lost(unanswered.Error())
	case errors.As(err, &refused) && refused.Code != "no_token":
		return nil, &loss{message: refused.Message, hint: noHint, isAnswer: true}
	}
	return response, err
}

func (h *httpLink) ended() error {
	cause := context.Cause(h.ctx)
	if errors.Is(cause, errSilent) {
		return silent()
	}
	return cause
}

// check returns what an error response means.
func (h *httpLink) check(response *answer) error {
	if response.isOK() {
		return nil
	}
	hint := response.retryAfter(h.client.options.Random)
	isUnusable := !isTemporary(response.status)
	err, isOwn := response.refusal()
	isUnauthorized := response.status == http.StatusUnauthorized
	switch {
	case !isOwn:
		err = h.client.refusal(response)
	case isUnauthorized && h.client.tokens.canRenew() && err.Code != "token_revoked":
		return &loss{message: err.Message, hint: noHint, isAnswer: true, isStale: true}
	case finalStatuses[response.status]:
		return err
	}
	return &loss{message: err.Message, hint: hint, isUnusable: isUnusable, isOwn: isOwn && !isUnusable}
}

// The server's limit of messages on a page.
const pageMax = 1000

// states has the states of channels that begin with theirs, which are followed from there.
func (h *httpLink) states() ([]event, error) {
	var events []event
	for _, each := range h.cursors.all {
		if !each.wantsState || each.position != "" {
			continue
		}
		taken, err := h.stateOf(each)
		if err != nil {
			return nil, err
		}
		events = append(events, taken...)
	}
	return events, nil
}

func (h *httpLink) stateOf(each *cursor) ([]event, error) {
	var id, after string
	var messages []fields
	for id == "" || after != "" {
		query := url.Values{"limit": {strconv.Itoa(pageMax)}}
		if after != "" {
			query.Set("after", after)
		}
		response, err := h.get(http.MethodGet, each.target.path("state", query), h.client.options.RequestTimeout)
		if err == nil {
			err = h.check(response)
		}
		if err != nil {
			return nil, err
		}
		var page struct {
			ID       string            `json:"id"`
			Messages []json.RawMessage `json:"messages"`
			Next     string            `json:"next"`
		}
		if json.Unmarshal(response.body, &page) != nil || page.ID == "" {
			return nil, unusable(notThrongPeer)
		}
		if id == "" {
			id = page.ID
		}
		after = page.Next
		for _, text := range page.Messages {
			var envelope fields
			if parse(text, &envelope) != nil {
				return nil, unusable(notThrongPeer)
			}
			// What is newer comes to those who follow the channel from there.
			if isUpTo(envelope.ID, id) {
				messages = append(messages, envelope)
			}
		}
	}
	slices.SortFunc(messages, func(a, b fields) int {
		_, first, _ := splitID(a.ID)
		_, second, _ := splitID(b.ID)
		return cmp.Compare(first, second)
	})
	events := each.follow(id, id, false)
	for index := range messages {
		taken, err := each.take(&messages[index])
		if err != nil {
			return nil, err
		}
		events = append(events, taken...)
	}
	end, err := each.endState(id)
	return append(events, end...), err
}

// settle asks where the channels end now, to tell older messages from live ones.
func (h *httpLink) settle() error {
	_, areSettled := h.cursors.have((*cursor).isSettled)
	some, _ := h.cursors.havePositions()
	if areSettled || (!some && h.cursors.history == 0) {
		return nil
	}
	path := h.url(url.Values{"transport": {"sse"}}, true)
	response, err := h.get(http.MethodHead, path, h.client.options.RequestTimeout)
	if err == nil && !response.isOK() {
		// The response to a HEAD has no body, which would say who refuses.
		response, err = h.now()
	}
	if err != nil {
		return err
	}
	heads, err := h.ids(response.header)
	if err != nil {
		return err
	}
	for index, each := range h.cursors.all {
		each.settle(heads[index])
		if some && each.position == "" {
			// A request names a position for all of its channels or for none.
			each.follow(heads[index], "", false)
		}
	}
	return nil
}

// now is the answer to a poll that does not wait.
func (h *httpLink) now() (*answer, error) {
	query := url.Values{"transport": {"poll"}, "wait": {"0"}}
	response, err := h.get(http.MethodGet, h.url(query, true), h.client.options.RequestTimeout)
	if err == nil {
		err = h.check(response)
	}
	return response, err
}

func (h *httpLink) ids(header http.Header) ([]string, error) {
	ids := strings.Split(header.Get("Throng-Id"), ",")
	if len(ids) != len(h.cursors.all) || ids[0] == "" {
		return nil, unusable(h.client.notThrong(nil).Message)
	}
	return ids, nil
}

// resumed takes where each channel starts, and the gaps.
func (h *httpLink) resumed(header http.Header, isResumed bool) ([]event, error) {
	starts, err := h.ids(header)
	if err != nil {
		return nil, err
	}
	areLost := make([]bool, len(starts))
	if isResumed && header.Get("Throng-Recovered") == "false" {
		for index, each := range h.cursors.all {
			if areLost[index], err = h.isLost(each); err != nil {
				return nil, err
			}
		}
	}
	var events []event
	for index, each := range h.cursors.all {
		events = append(events, each.follow(starts[index], "", areLost[index])...)
		if each.position == "" {
			// The next connection begins with its state, and tells of the gap.
			return nil, &loss{message: "a state begins again", isOwn: true}
		}
	}
	return events, nil
}

// isLost says whether this channel has a gap. A response covers all channels; a history covers one.
func (h *httpLink) isLost(each *cursor) (bool, error) {
	if len(h.cursors.all) == 1 {
		return true, nil
	}
	query := url.Values{"after": {each.position}, "limit": {"1"}}
	path := each.target.path("history", query)
	response, err := h.get(http.MethodGet, path, h.client.options.RequestTimeout)
	if err != nil {
		return false, err
	}
	var page fields
	isRead := response.isOK() && json.Unmarshal(response.body, &page) == nil
	return !isRead || (page.Recovered != nil && !*page.Recovered), nil
}

// deliver takes a message, or a gap in its place.
func (h *httpLink) deliver(text []byte) ([]event, error) {
	var envelope fields
	if err := parse(text, &envelope); err != nil {
		return nil, unusable(notThrongPeer)
	}
	if envelope.Type == "unread" {
		return h.cursors.unread(&envelope), nil
	}
	each := h.cursors.of(envelope.target())
	if each == nil {
		return nil, nil
	}
	switch envelope.Type {
	case "presence":
		return each.see(&envelope), nil
	case "gap":
		return each.gap(envelope.ID, envelope.Missed), nil
	case "conflated":
		return each.skip(envelope.Count), nil
	case "ended":
		return h.cursors.end(each, envelope.ID), nil
	case "message", "erased":
		return each.take(&envelope)
	}
	return nil, nil
}

// hasEnded says whether nothing comes after a response, because all of its channels have ended.
func hasEnded(header http.Header) bool { return header.Get("Throng-Ended") == "true" }

// endAll takes that all channels have ended, with these ids.
func (h *httpLink) endAll(ids []string) (events []event) {
	for index, each := range h.cursors.all {
		events = append(events, h.cursors.end(each, ids[index])...)
	}
	return events
}

// A streamLink follows with server-sent events.
type streamLink struct {
	httpLink
	token  string
	body   io.Closer
	stream *eventStream
	name   string
	// greeted is what the first event has told.
	greeted []event
	// isThrong: the head of the response shows it.
	isThrong bool
}

func newStreamLink(ctx context.Context, client *Client, cursors *cursors, timeout time.Duration) link {
	return &streamLink{httpLink: newHTTPLink(ctx, client, cursors, timeout)}
}

func (s *streamLink) connection() string { return s.name }

// prove follows from now on, until the stream has begun.
func (s *streamLink) prove() error {
	_, err := s.begin(true)
	if s.body != nil {
		_ = s.body.Close()
		s.body = nil
	}
	return err
}

func (s *streamLink) open() ([]event, error) {
	states, err := s.states()
	if err == nil {
		err = s.settle()
	}
	if err != nil {
		return nil, err
	}
	_, isResumed := s.cursors.havePositions()
	header, err := s.begin(false)
	if err != nil {
		return nil, err
	}
	s.name = header.Get("Throng-Connection")
	events, err := s.resumed(header, isResumed)
	if err == nil {
		s.setOpen()
		s.heard()
	}
	if err == nil && hasEnded(header) {
		// It has as many as there are channels.
		ids, _ := s.ids(header)
		events = append(events, s.endAll(ids)...)
	}
	return slices.Concat(states, s.greeted, events), err
}

// begin waits for the first event: a stream begins with one at once, unless a proxy buffers it.
func (s *streamLink) begin(isFromNow bool) (http.Header, error) {
	overdue := late("the stream did not begin in time")
	timer := time.AfterFunc(s.timeout, func() { s.cancel(overdue) })
	defer timer.Stop()
	header, err := s.start(isFromNow)
	if err != nil {
		return nil, err
	}
	s.isThrong = header.Get("Throng-Id") != ""
	if s.stream == nil {
		return header, nil
	}
	first, err := s.next()
	if err == nil && first.name == "resumed" {
		first, err = s.next()
	}
	if err != nil {
		return nil, err
	}
	if first.name == "closed" {
		return nil, s.closed(first.data)
	}
	if first.name == "welcome" {
		var welcome fields
		if err := parse(first.data, &welcome); err != nil {
			return nil, unusable(notThrongPeer)
		}
		s.greeted = s.cursors.unread(&welcome)
	}
	if !timer.Stop() {
		return nil, overdue
	}
	return header, nil
}

func (s *streamLink) start(isFromNow bool) (http.Header, error) {
	query, _ := s.client.options.Params.query()
	if s.cursors.paceMs != 0 {
		query.Set("pace", strconv.FormatInt(s.cursors.paceMs, 10)+"ms")
	}
	query.Set("transport", "sse")
	query.Set("welcome", "true")
	if s.cursors.hasPresence {
		query.Set("presence", "true")
	}
	path := s.url(query, isFromNow)
	s.token, _ = s.client.tokens.now()
	headers := map[string]string{"Accept": "text/event-stream", "Cache-Control": "no-store"}
	response, err := s.client.do(s.ctx, request{method: http.MethodGet, path: path, header: headers}, s.token)
	if s.ctx.Err() != nil {
		if err == nil {
			response.Body.Close()
		}
		return nil, s.ended()
	}
	if err != nil {
		return nil, lost(fmt.Sprintf("the server cannot be reached: %v", err))
	}
	s.body = response.Body
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
		refused := &answer{response.StatusCode, response.Header, body}
		if _, isOwn := refused.refusal(); isOwn && response.StatusCode == http.StatusUnauthorized {
			s.client.tokens.refuse(s.token)
		}
		if err := s.check(refused); err != nil {
			return nil, err
		}
	}
	if response.StatusCode == http.StatusNoContent && hasEnded(response.Header) {
		return response.Header, nil
	}
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if kind != "text/event-stream" {
		return nil, unusable(s.client.notThrong(nil).Message)
	}
	s.stream = newEventStream(heartbeats{s})
	return response.Header, nil
}

// heartbeats is the body of a stream. It reports all data, also comments.
type heartbeats struct{ link *streamLink }

func (h heartbeats) Read(into []byte) (int, error) {
	n, err := h.link.body.(io.Reader).Read(into)
	if n > 0 {
		h.link.heard()
	}
	return n, err
}

// heard says that data has arrived.
func (s *streamLink) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heardAt = time.Now()
	if options := s.client.options; s.opened && options.Heartbeat > 0 {
		s.watchdog.set(s.heardAt.Add(options.Heartbeat + options.RequestTimeout/2))
	} else {
		s.watchdog.set(time.Time{})
	}
}

func (s *streamLink) next() (streamEvent, error) {
	event, err := s.stream.next()
	switch {
	case err == nil:
		return event, nil
	case s.ctx.Err() != nil:
		return event, s.ended()
	}
	message := "the stream ended"
	if !errors.Is(err, io.EOF) {
		message = fmt.Sprintf("the stream broke: %v", err)
	}
	// A server that refuses a stream, or shuts down, names a time to retry.
	return event, &loss{message: message, hint: s.stream.retry, isOwn: s.stream.retry != noHint}
}

func (s *streamLink) receive() ([]event, error) {
	s.watchdog.arm(s.client.options.RequestTimeout / 2)
	event, err := s.next()
	s.watchdog.disarm()
	if err != nil {
		return nil, err
	}
	switch event.name {
	case "closed":
		return nil, s.closed(event.data)
	case "message", "binary", "erased", "gap", "conflated", "presence", "ended", "unread":
		return s.deliver(event.data)
	}
	return nil, nil
}

func (s *streamLink) closed(data []byte) error {
	var last fields
	if err := json.Unmarshal(data, &last); err != nil {
		return unusable(notThrongPeer)
	}
	tokens := s.client.tokens
	if s.isThrong && isStaleToken(last.CloseCode) {
		tokens.refuse(s.token)
	}
	reason := last.Code + ": " + last.Message
	end := closing{last.CloseCode, reason, s.stream.retry, s.isThrong}
	return end.loss(last.Message, tokens.canRenew(), s.token != "")
}

func (s *streamLink) close() {
	s.httpLink.close()
	if s.body != nil {
		_ = s.body.Close()
	}
}

// A pollLink follows with long polls: each returns as soon as there is a message.
type pollLink struct {
	httpLink
	// hint is the time to retry of a server that shuts down, which is in its last response.
	hint time.Duration
}

func newPollLink(ctx context.Context, client *Client, cursors *cursors, timeout time.Duration) link {
	return &pollLink{httpLink: newHTTPLink(ctx, client, cursors, timeout), hint: noHint}
}

func (p *pollLink) connection() string { return "" }

// prove polls from now on, which returns at once.
func (p *pollLink) prove() error {
	_, err := p.now()
	return err
}

func (p *pollLink) open() ([]event, error) {
	states, err := p.states()
	if err == nil {
		err = p.settle()
	}
	if err != nil {
		return nil, err
	}
	// The first poll returns at once, which shows that the transport works.
	events, err := p.poll(0)
	if err == nil {
		p.setOpen()
	}
	return append(states, events...), err
}

func (p *pollLink) receive() ([]event, error) {
	if p.hint != noHint {
		return nil, &loss{message: "the server is shutting down", hint: p.hint}
	}
	return p.poll(p.client.options.PollWait.Truncate(time.Second))
}

// presence asks for the events after the last one, for the server answers at once without its time.
func (p *pollLink) presence() string {
	var times []string
	for _, each := range p.cursors.all {
		switch {
		case each.target.IsUser():
		case each.seenID != "":
			times = append(times, each.seenID)
		case each.seenAt == 0:
			times = append(times, "true")
		default:
			times = append(times, strconv.FormatInt(each.seenAt, 10))
		}
	}
	return strings.Join(times, ",")
}

func (p *pollLink) poll(wait time.Duration) ([]event, error) {
	options := p.client.options
	before := p.cursors.positions()
	_, isResumed := p.cursors.havePositions()
	patience := wait + options.RequestTimeout/2
	if wait == 0 {
		patience = options.RequestTimeout
	}
	query := url.Values{"transport": {"poll"}, "wait": {strconv.Itoa(int(wait / time.Second))}}
	if p.cursors.hasPresence {
		query.Set("presence", p.presence())
	}
	p.watchdog.set(time.Now().Add(patience))
	p.watchdog.arm(patience)
	response, err := p.get(http.MethodGet, p.url(query, false), patience)
	p.watchdog.disarm()
	if err == nil {
		err = p.check(response)
	}
	if err != nil {
		return nil, err
	}
	return p.taken(response, before, isResumed)
}

// taken is what an answer has. before are the positions that it begins after.
func (p *pollLink) taken(response *answer, before []string, isResumed bool) ([]event, error) {
	ends, err := p.ids(response.header)
	if err != nil {
		return nil, err
	}
	events, err := p.resumed(response.header, isResumed)
	if err != nil {
		return nil, err
	}
	asked := p.cursors.all
	for _, line := range strings.Split(string(response.body), "\n") {
		if line == "" {
			continue
		}
		taken, err := p.deliver([]byte(line))
		if err != nil {
			return p.cutShort(events, before, err)
		}
		events = append(events, taken...)
	}
	for index, each := range asked {
		each.position = ends[index]
	}
	if hasEnded(response.header) {
		events = append(events, p.endAll(ends)...)
	}
	p.mu.Lock()
	p.heardAt = time.Now()
	p.mu.Unlock()
	p.hint = response.retryAfter(p.client.options.Random)
	return events, nil
}

// cutShort leaves an answer of which a line cannot be read. What came before it counts, and the next
// poll begins after that: no position stays at the end of the answer, which its head names.
func (p *pollLink) cutShort(events []event, before []string, cause error) ([]event, error) {
	hasMessages := slices.ContainsFunc(events, func(each event) bool { return each.message != nil })
	for index, each := range p.cursors.all {
		if before[index] != "" || each.delivered != "" {
			continue
		}
		if hasMessages {
			// A request has a position for each channel, or for none, so that this one has to go on.
			events = append(events, each.gap(each.position, 0)...)
			continue
		}
		each.position, each.hasStarted = "", false
	}
	if len(events) > 0 {
		return events, nil
	}
	return nil, cause
}
