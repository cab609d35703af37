package throng

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// The lines and bytes of a batch in one request: below the server's limits, and small enough that a
// retry repeats little.
const (
	batchLinesMax = 1_000
	batchBytesMax = 1 << 20
)

// Errors of a line after which the same message may be accepted.
var retriedCodes = map[string]bool{"busy": true, "too_many_requests": true, "full": true, "draining": true}

// Publish publishes a string, a []byte or what encoding/json encodes. It returns once the server
// has the message; see PublishDraft.
func (c *Client) Publish(ctx context.Context, target Target, data any) (Published, error) {
	return c.PublishDraft(ctx, Draft{Target: target, Data: data})
}

// PublishDraft publishes a message; it returns once the server has it. It tries again within
// PublishTimeout, always with the same idempotency key. Errors are of type *Error, with an Outcome
// and the Key. If the context ends first, the error wraps that of the context.
func (c *Client) PublishDraft(ctx context.Context, draft Draft) (Published, error) {
	defer c.watch()()
	if err := draft.prepare(); err != nil {
		return Published{}, err
	}
	body, contentType, err := draft.encoded(c.messageBytesMax.Load())
	if err != nil {
		return Published{}, err
	}
	header := draft.header(contentType)
	tries := c.attempts(ctx)
	var published Published
	read := func(body []byte) bool {
		published = Published{}
		return json.Unmarshal(body, &published) == nil && published.ID != ""
	}
	for {
		isRead, refused := tries.send(request{http.MethodPost, draft.Target.path("", nil), header, body}, read)
		if isRead {
			return published, nil
		}
		if refused == nil {
			refused = tries.wait()
		}
		if refused != nil {
			return Published{}, tries.failed(refused, draft.Key)
		}
	}
}

// PublishVolatile publishes a message that has no id, and that only those get who follow now and keep
// up. Its draft has neither a Key nor ExpiresIn. It is tried once: nothing tells a second attempt from
// the first, and it would come too late. Errors are of type *Error, with an Outcome.
func (c *Client) PublishVolatile(ctx context.Context, draft Draft) (Published, error) {
	defer c.watch()()
	if draft.Key != "" || draft.ExpiresIn != 0 {
		return Published{}, errors.New("throng: a volatile message has neither a Key nor ExpiresIn")
	}
	if err := draft.prepare(); err != nil {
		return Published{}, err
	}
	draft.Key = ""
	body, contentType, err := draft.encoded(c.messageBytesMax.Load())
	if err != nil {
		return Published{}, err
	}
	header := draft.header(contentType)
	delete(header, "Idempotency-Key")
	var answer struct {
		Published
		Volatile bool `json:"volatile"`
	}
	read := func(body []byte) bool { return json.Unmarshal(body, &answer) == nil && answer.Volatile }
	tries := c.attempts(ctx)
	path := draft.Target.path("", url.Values{"volatile": {"true"}})
	isRead, refused := tries.send(request{http.MethodPost, path, header, body}, read)
	if isRead {
		return answer.Published, nil
	}
	if refused == nil {
		refused = tries.refused
	}
	if refused == nil {
		message := fmt.Sprintf("the server did not confirm the message: %s", tries.reason)
		refused = &Error{Code: "timeout", Message: message}
	}
	return Published{}, tries.failed(refused, "")
}

// attempts of a publication, within its time.
type attempts struct {
	ctx       context.Context
	client    *Client
	until     time.Time
	count     int
	uncertain int
	delay     time.Duration
	reason    string
	// refused is the answer to the last attempt, if that may be made again.
	refused *Error
}

func (c *Client) attempts(ctx context.Context) *attempts {
	return &attempts{ctx: ctx, client: c, until: time.Now().Add(c.options.PublishTimeout)}
}

func (a *attempts) outcome() Outcome {
	if a.uncertain > 0 {
		return Unknown
	}
	return Unpublished
}

// failed adds the outcome and the key to a copy of the error.
func (a *attempts) failed(err *Error, key string) *Error {
	own := *err
	own.Outcome, own.Key = a.outcome(), key
	return &own
}

// send makes one attempt. It is true if read could read the response. Without that and an error the
// message is to be sent again, after wait.
func (a *attempts) send(r request, read func(body []byte) bool) (bool, *Error) {
	options := a.client.options
	timeout := min(options.RequestTimeout, time.Until(a.until))
	a.delay = backoff(a.count, options.Random)
	a.count++
	a.uncertain++
	a.refused = nil
	response, err := a.client.send(a.ctx, r, timeout)
	var unanswered *noAnswer
	var refused *Error
	switch {
	case a.ctx.Err() != nil:
		return false, a.cancelled()
	case errors.As(err, &unanswered):
		a.reason = unanswered.Error()
		if !unanswered.wasSent {
			a.uncertain--
		}
		return false, nil
	case errors.As(err, &refused):
		// There is no token: nothing was sent.
		a.uncertain--
		a.refused, a.reason = refused, refused.Message
		if refused.Code == "no_token" {
			return false, refused
		}
		return false, nil
	}
	if response.isOK() {
		if read(response.body) {
			a.uncertain--
			return true, nil
		}
		// Not from Throng, so that it says nothing about what a server behind it did.
		a.reason = a.client.notThrong(nil).Message
		return false, nil
	}
	refused, isOwn := response.refusal()
	a.refused, a.reason = refused, refused.Message
	if named := response.retryAfter(options.Random); named != noHint {
		a.delay = named
	}
	if !isOwn {
		// It says nothing about what the server behind it did, and may pass.
		a.client.refusal(response)
		return false, nil
	}
	if refused.Code != "outcome_unknown" {
		a.uncertain--
	}
	if !isTemporary(response.status) {
		return false, refused
	}
	return false, nil
}

// wait waits for the time of the next attempt; it returns an error if that is too late.
func (a *attempts) wait() *Error {
	if time.Until(a.until) <= a.delay {
		end := "it was not published"
		if a.outcome() == Unknown {
			end = "it is unknown whether it was published"
		}
		message := fmt.Sprintf("the server did not confirm the message in %v; %s: %s",
			a.client.options.PublishTimeout, end, a.reason)
		return &Error{Code: "timeout", Message: message}
	}
	if !sleep(a.ctx, a.delay) {
		return a.cancelled()
	}
	return nil
}

func (a *attempts) cancelled() *Error {
	cause := context.Cause(a.ctx)
	return &Error{Code: "timeout", Message: fmt.Sprintf("the publication was given up: %v", cause), Cause: cause}
}

// sleep waits for a time; false if the context ends first.
func sleep(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A Result is what became of a message of a batch. Err is nil if it was published.
type Result struct {
	Published
	Err *Error
}

// PublishBatch publishes messages with few requests; the result of each is at its place. Messages
// that the server refuses for a moment are sent again, and then come after the others.
func (c *Client) PublishBatch(ctx context.Context, drafts []Draft) ([]Result, error) {
	defer c.watch()()
	lines := make([]line, len(drafts))
	results := make([]Result, len(drafts))
	var open []int
	for index, draft := range drafts {
		err := draft.prepare()
		if err == nil {
			_, _, err = draft.encoded(c.messageBytesMax.Load())
		}
		if errors.As(err, &results[index].Err) {
			continue
		}
		var text []byte
		if err == nil {
			text, err = draft.line()
		}
		if err != nil {
			return nil, fmt.Errorf("throng: message %d of the batch: %w", index, err)
		}
		lines[index] = line{key: draft.Key, text: text}
		open = append(open, index)
	}
	for from := 0; from < len(open); {
		to, size := from, 0
		for to < len(open) && to-from < batchLinesMax {
			if size += len(lines[open[to]].text); to > from && size > batchBytesMax {
				break
			}
			to++
		}
		c.publishPart(ctx, lines, slices.Clone(open[from:to]), results)
		from = to
	}
	return results, nil
}

type line struct {
	key  string
	text []byte
}

// publishPart publishes the open lines, with one request at a time.
func (c *Client) publishPart(ctx context.Context, lines []line, open []int, results []Result) {
	tries := c.attempts(ctx)
	for len(open) > 0 {
		var body bytes.Buffer
		for _, index := range open {
			body.Write(lines[index].text)
		}
		header := map[string]string{"Content-Type": "application/x-ndjson"}
		var outcomes []Result
		read := func(body []byte) (isRead bool) {
			outcomes, isRead = readLines(body, len(open))
			return isRead
		}
		isRead, refused := tries.send(request{http.MethodPost, "/publish", header, body.Bytes()}, read)
		if isRead {
			open = settle(lines, open, outcomes, results)
		}
		if len(open) > 0 && refused == nil {
			refused = tries.wait()
		}
		if refused == nil {
			continue
		}
		for _, index := range open {
			if results[index].Err == nil || tries.outcome() == Unknown {
				results[index].Err = tries.failed(refused, lines[index].key)
			}
		}
		return
	}
}

// readLines reads the result of each line of a batch.
func readLines(body []byte, count int) ([]Result, bool) {
	results := make([]Result, count)
	decoder := json.NewDecoder(bytes.NewReader(body))
	for index := range results {
		var result struct {
			Published
			Error   string `json:"error"`
			Message string `json:"message"`
		}
		if decoder.Decode(&result) != nil || (result.ID == "" && result.Error == "") {
			return nil, false
		}
		results[index].Published = result.Published
		if result.Error != "" {
			results[index].Err = &Error{Code: result.Error, Message: result.Message, Outcome: Unpublished}
		}
	}
	return results, true
}

// settle takes the results of a response; it returns the lines to send again.
func settle(lines []line, open []int, outcomes []Result, results []Result) []int {
	var again []int
	for place, index := range open {
		results[index] = outcomes[place]
		err := results[index].Err
		if err == nil {
			continue
		}
		err.Key = lines[index].key
		if retriedCodes[err.Code] {
			again = append(again, index)
		}
	}
	return again
}
