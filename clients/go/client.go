// Package throng is the Go client of Throng, a push server. It publishes, follows channels and
// users' inboxes, reconnects and resumes.
//
// Layout: a Client sends requests (publish.go) and makes Subscriptions. A Subscription has a cursor
// for each channel, and one link at a time: one attempt at one transport, from opening to loss.
package throng

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A response to a short request is no longer than a page of history can be.
const answerBytesMax = 64 << 20

// A Client is for one server. Any number of goroutines may use it.
type Client struct {
	url     string
	options Options
	tokens  *tokens
	mu      sync.Mutex
	// open are the links that learn of unanswered requests.
	open     map[link]struct{}
	warnings *warnings
	// isFull: the server is an older one, which has no compact messages.
	isFull atomic.Bool
	// messageBytesMax is the server's limit, 0 while no WebSocket has told it.
	messageBytesMax atomic.Int64
}

// New makes a client. The URL is that of the server: http or https.
func New(url string, options Options) (*Client, error) {
	checked, err := checkedURL(url)
	if err != nil {
		return nil, err
	}
	options, err = options.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Client{
		url: checked, options: options,
		tokens:   newTokens(options.Token, options.GetToken, options.RequestTimeout),
		open:     map[link]struct{}{},
		warnings: &warnings{logger: options.Logger},
	}, nil
}

// A Page says which messages History returns. The zero value means the latest 100.
type Page struct {
	// Limit is 1 to 1,000; 100 if 0.
	Limit int
	// Before and After are ids; at most one of them or Since is set.
	Before, After string
	// Since: the messages that were published at this time or later.
	Since time.Time
	// Newest: the newest message comes first, not the oldest.
	Newest bool
}

// History reads a page of the history of a channel.
func (c *Client) History(ctx context.Context, target Target, page Page) (History, error) {
	query := url.Values{}
	if page.Limit != 0 {
		query.Set("limit", strconv.Itoa(page.Limit))
	}
	if page.Before != "" {
		query.Set("before", page.Before)
	}
	if page.After != "" {
		query.Set("after", page.After)
	}
	if !page.Since.IsZero() {
		query.Set("since_time", strconv.FormatInt(page.Since.UnixMilli(), 10))
	}
	if page.Newest {
		query.Set("order", "newest")
	}
	var history History
	read := func(body []byte) (err error) {
		history, err = parseHistory(body)
		return err
	}
	if err := c.read(ctx, target, "history", query, read); err != nil {
		return History{}, err
	}
	for _, each := range history.Unreadable {
		c.warnUnreadable(each)
	}
	return history, nil
}

func (c *Client) warnUnreadable(message Unreadable) {
	c.warnings.warn("unreadable "+message.Reason, "a message cannot be read, and is passed over",
		"target", message.Target.String(), "id", message.ID, "reason", message.Reason)
}

// Presence reads who follows a channel: at most limit users, 100 if it is 0.
func (c *Client) Presence(ctx context.Context, target Target, limit int) (Presence, error) {
	query := url.Values{}
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var presence Presence
	read := func(body []byte) error { return json.Unmarshal(body, &presence) }
	err := c.read(ctx, target, "presence", query, read)
	return presence, err
}

// Members reads a page of the members of a channel that has a list of them, behind the member after, or
// from the first one: at most limit, 100 if it is 0.
func (c *Client) Members(ctx context.Context, target Target, after string, limit int) (MemberPage, error) {
	query := url.Values{}
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	if after != "" {
		query.Set("after", after)
	}
	var page MemberPage
	read := func(body []byte) error { return json.Unmarshal(body, &page) }
	err := c.read(ctx, target, "presence", query, read)
	return page, err
}

var errNoID = &Error{Code: "bad_id", Message: "name the id of a message"}

// Erase erases a message, by its id. This needs the right "erase".
func (c *Client) Erase(ctx context.Context, target Target, id string) (Erased, error) {
	if id == "" {
		return Erased{}, errNoID
	}
	kind, name := target.parts()
	return c.erase(ctx, target, "/messages?"+url.Values{kind: {name}, "id": {id}}.Encode())
}

// Edit publishes draft in the place of a message, which is erased, and returns the id of the new one.
// This needs the right "edit", unless the client has published the message itself and the channel
// shows users. Makes one attempt, without the Key of the draft.
func (c *Client) Edit(ctx context.Context, id string, draft Draft) (string, error) {
	if id == "" {
		return "", errNoID
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
	kind, name := draft.Target.parts()
	path := "/messages?" + url.Values{kind: {name}, "id": {id}}.Encode()
	var found struct {
		ID string `json:"id"`
	}
	read := func(body []byte) error { return json.Unmarshal(body, &found) }
	err = c.ask(ctx, draft.Target, request{http.MethodPut, path, header, body}, read)
	return found.ID, err
}

// Read moves the read marker of Options.User to a message of the inbox: forward only, so that devices
// may report late. Without an id, it only asks.
func (c *Client) Read(ctx context.Context, id string) (ReadMarker, error) {
	return c.mark(ctx, User(c.options.User), url.Values{}, id)
}

// ReadIn does the same with the marker of Options.User in a channel that has read markers.
func (c *Client) ReadIn(ctx context.Context, channel, id string) (ReadMarker, error) {
	return c.mark(ctx, Channel(channel), url.Values{"reader": {c.options.User}}, id)
}

func (c *Client) mark(
	ctx context.Context, target Target, query url.Values, id string,
) (ReadMarker, error) {
	if c.options.User == "" {
		return ReadMarker{}, errors.New("throng: whose marker is it? Set Options.User")
	}
	method := http.MethodGet
	if id != "" {
		method = http.MethodPut
		query.Set("id", id)
	}
	var found ReadMarker
	read := func(body []byte) error { return json.Unmarshal(body, &found) }
	err := c.ask(ctx, target, request{method: method, path: target.path("read", query)}, read)
	return found, err
}

// End ends a channel: followers get its end, and later publications the error "closed". This needs the
// right "end". Makes one attempt.
func (c *Client) End(ctx context.Context, target Target) (Ended, error) {
	return c.end(ctx, target, nil, nil)
}

// EndWith ends the channel of a draft, with the draft as its last message, but without its Key.
func (c *Client) EndWith(ctx context.Context, last Draft) (Ended, error) {
	if err := last.prepare(); err != nil {
		return Ended{}, err
	}
	body, contentType, err := last.encoded(c.messageBytesMax.Load())
	if err != nil {
		return Ended{}, err
	}
	header := last.header(contentType)
	delete(header, "Idempotency-Key")
	return c.end(ctx, last.Target, header, body)
}

func (c *Client) end(
	ctx context.Context, target Target, header map[string]string, body []byte,
) (Ended, error) {
	var found struct {
		Ended string `json:"ended"`
	}
	read := func(body []byte) error { return json.Unmarshal(body, &found) }
	err := c.ask(ctx, target, request{http.MethodPost, target.path("end", nil), header, body}, read)
	if err != nil {
		return Ended{}, err
	}
	return Ended{target, found.Ended}, nil
}

// Open opens a channel again that has ended.
func (c *Client) Open(ctx context.Context, target Target) error {
	read := func([]byte) error { return nil }
	return c.ask(ctx, target, request{method: http.MethodDelete, path: target.path("end", nil)}, read)
}

// EraseHistory erases all messages that a channel keeps now.
func (c *Client) EraseHistory(ctx context.Context, target Target) (Erased, error) {
	return c.erase(ctx, target, target.path("history", nil))
}

func (c *Client) erase(ctx context.Context, target Target, path string) (Erased, error) {
	var found struct {
		ID         string `json:"id"`
		Erased     string `json:"erased"`
		ErasedUpTo string `json:"erased_up_to"`
		Messages   int    `json:"messages"`
	}
	read := func(body []byte) error { return json.Unmarshal(body, &found) }
	err := c.ask(ctx, target, request{method: http.MethodDelete, path: path}, read)
	if err != nil {
		return Erased{}, err
	}
	return Erased{target, found.ID, found.Erased, found.ErasedUpTo, found.Messages}, nil
}

func (c *Client) read(
	ctx context.Context, target Target, what string, query url.Values, read func([]byte) error,
) error {
	return c.ask(ctx, target, request{method: http.MethodGet, path: target.path(what, query)}, read)
}

func (c *Client) ask(ctx context.Context, target Target, r request, read func([]byte) error) error {
	if err := target.check(); err != nil {
		return err
	}
	defer c.watch()()
	answer, err := c.send(ctx, r, c.options.RequestTimeout)
	if err != nil {
		return toError(ctx, err)
	}
	if !answer.isOK() {
		return c.refusal(answer)
	}
	if err := read(answer.body); err != nil {
		return c.notThrong(err)
	}
	return nil
}

// refusal is the error of a response; that of a stranger is logged.
func (c *Client) refusal(response *answer) *Error {
	err, isOwn := response.refusal()
	if !isOwn {
		c.warnings.warn(err.Code, err.Message, "url", c.url)
	}
	return err
}

// notThrong is the error of an answer that no Throng server gives.
func (c *Client) notThrong(cause error) *Error {
	message := "the answer is not one of a Throng server; is " + c.url + " the URL of one?"
	c.warnings.warn("not Throng", message)
	return &Error{Code: "unreachable", Message: message, Cause: cause}
}

// toError is what a caller gets for a request without a response.
func toError(ctx context.Context, err error) error {
	var failed *noAnswer
	if ctx.Err() != nil || !errors.As(err, &failed) {
		return err
	}
	code := "unreachable"
	if failed.isLate {
		code = "timeout"
	}
	return &Error{Code: code, Message: failed.Error(), Cause: failed.cause}
}

// watch says that a request begins; call the result when it has ended. After half of its time all
// links are asked for a sign of life, so that a frozen server is noticed when the time is over.
func (c *Client) watch() func() {
	since := time.Now()
	patience := c.options.RequestTimeout
	timer := time.AfterFunc(patience/2, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for each := range c.open {
			each.suspect(since, since.Add(patience))
		}
	})
	return func() { timer.Stop() }
}

func (c *Client) register(each link, isOpen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isOpen {
		c.open[each] = struct{}{}
	} else {
		delete(c.open, each)
	}
}

// A request is short: its response is complete within a timeout.
type request struct {
	method, path string
	header       map[string]string
	body         []byte
}

// noAnswer is a request without a response.
type noAnswer struct {
	cause error
	// wasSent is false if nothing of the request can have arrived.
	wasSent bool
	isLate  bool
}

func (n *noAnswer) Error() string {
	if n.isLate {
		return "the server did not answer in time"
	}
	return fmt.Sprintf("the server cannot be reached: %v", n.cause)
}

func (n *noAnswer) Unwrap() error { return n.cause }

// send is the response to a request with the token. If the server refuses that, it sends a newer
// one. Its errors are noAnswer, those of the function for tokens, and that of the context.
func (c *Client) send(ctx context.Context, r request, timeout time.Duration) (*answer, error) {
	token, isReady := c.tokens.now()
	if !isReady {
		var err error
		if token, err = c.tokens.load(ctx, ""); err != nil {
			return nil, err
		}
	}
	response, err := c.sendOnce(ctx, r, token, timeout)
	if err != nil || response.status != http.StatusUnauthorized {
		return response, err
	}
	refused, isOwn := response.refusal()
	if !isOwn {
		return response, nil
	}
	c.tokens.refuse(token)
	if !c.tokens.canRenew() || refused.Code == "token_revoked" {
		return response, nil
	}
	newer, err := c.tokens.load(ctx, token)
	if err != nil {
		return nil, err
	}
	if newer == token {
		return response, nil
	}
	return c.sendOnce(ctx, r, newer, timeout)
}

func (c *Client) sendOnce(ctx context.Context, r request, token string, timeout time.Duration) (*answer, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	wasSent := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { wasSent = true }}
	response, err := c.do(httptrace.WithClientTrace(limited, trace), r, token)
	var body []byte
	if err == nil {
		defer response.Body.Close()
		if asked := response.Request; asked != nil && asked.Response != nil && asked.Method != r.method {
			// A redirect has made another request of it.
			return &answer{status: asked.Response.StatusCode, header: asked.Response.Header}, nil
		}
		body, err = io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, &noAnswer{cause: err, wasSent: wasSent, isLate: limited.Err() != nil}
	}
	return &answer{status: response.StatusCode, header: response.Header, body: body}, nil
}

func (c *Client) do(ctx context.Context, r request, token string) (*http.Response, error) {
	outgoing, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	for name, value := range r.header {
		outgoing.Header.Set(name, value)
	}
	if token != "" {
		outgoing.Header.Set("Authorization", "Bearer "+token)
	}
	return c.options.HTTPClient.Do(outgoing)
}
