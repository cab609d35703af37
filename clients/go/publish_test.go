//go:build go1.25

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
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// script answers requests one after the other; the last entry repeats.
type script struct {
	entries []func(*http.Request, string) (*http.Response, error)
	sent    []*http.Request
	bodies  []string
	at      []time.Duration
	began   time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	s.sent, s.bodies = append(s.sent, r), append(s.bodies, string(body))
	s.at = append(s.at, time.Since(s.began))
	entry := s.entries[0]
	if len(s.entries) > 1 {
		s.entries = s.entries[1:]
	}
	return entry(r, string(body))
}

func says(status int, body string, header ...string) func(*http.Request, string) (*http.Response, error) {
	return func(r *http.Request, _ string) (*http.Response, error) {
		trace(r)
		response := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
		for _, line := range header {
			name, value, _ := strings.Cut(line, ": ")
			response.Header.Set(name, value)
		}
		return response, nil
	}
}

func refuses(status int, code string, header ...string) func(*http.Request, string) (*http.Response, error) {
	return says(status, fmt.Sprintf(`{"error":%q,"message":"refused"}`, code), header...)
}

func cut(r *http.Request, _ string) (*http.Response, error) {
	trace(r)
	return nil, errors.New("cut")
}

func tooLate(r *http.Request, _ string) (*http.Response, error) {
	trace(r)
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func refused(*http.Request, string) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

// publishTo publishes to a script in virtual time.
func publishTo(t *testing.T, s *script, options Options) (Published, error) {
	t.Helper()
	draft := Draft{Target: Channel("a"), Data: map[string]int{"n": 1}, Key: "order-7"}
	return publishWith(t, s, options, func(client *Client) (Published, error) {
		return client.PublishDraft(context.Background(), draft)
	})
}

func publishWith(
	t *testing.T, s *script, options Options, publish func(*Client) (Published, error),
) (published Published, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s.began = time.Now()
		options.HTTPClient = &http.Client{Transport: s}
		options.Random = func() float64 { return 1 }
		client, failed := New("http://127.0.0.1:1", options)
		if failed != nil {
			t.Fatal(failed)
		}
		published, err = publish(client)
		if took := time.Since(s.began); took > client.options.PublishTimeout {
			t.Errorf("it took %v", took)
		}
	})
	return published, err
}

var done = says(201, `{"id":"e-1","subscribers":2}`)

func TestAttemptsHaveOneKeyBackOffAndObeyTheServer(t *testing.T) {
	s := &script{entries: []func(*http.Request, string) (*http.Response, error){
		cut, cut, refuses(503, "busy", "Retry-After: 7"), cut, done,
	}}
	published, err := publishTo(t, s, Options{})
	if err != nil || published.ID != "e-1" {
		t.Fatal(published, err)
	}
	if want := seconds(0, 0.5, 1.5, 9.5, 13.5); !slices.Equal(s.at, want) {
		t.Errorf("got %v, want %v", s.at, want)
	}
	for _, r := range s.sent {
		if r.Header.Get("Idempotency-Key") != "order-7" {
			t.Error(r.Header)
		}
	}
}

func TestTheOutcomeIsSaidWhenItGivesUp(t *testing.T) {
	type entries = []func(*http.Request, string) (*http.Response, error)
	for _, each := range []struct {
		entries entries
		code    string
		outcome Outcome
	}{
		{entries{tooLate}, "timeout", Unknown},
		{entries{cut}, "timeout", Unknown},
		{entries{refused}, "timeout", Unpublished},
		{entries{refuses(503, "busy")}, "timeout", Unpublished},
		{entries{refuses(503, "full"), cut, refuses(503, "full")}, "timeout", Unknown},
		{entries{says(502, "bad gateway")}, "timeout", Unknown},
		{entries{refuses(413, "too_large")}, "too_large", Unpublished},
		{entries{cut, refuses(403, "forbidden")}, "forbidden", Unknown},
	} {
		_, err := publishTo(t, &script{entries: each.entries}, Options{})
		var failed *Error
		if !errors.As(err, &failed) {
			t.Fatal(err)
		}
		if failed.Code != each.code || failed.Outcome != each.outcome || failed.Key != "order-7" {
			t.Errorf("got %+v, want %s %s", failed, each.code, each.outcome)
		}
	}
}

func TestAnEventAndTagsAreHeadersAndFields(t *testing.T) {
	answer := says(201, `{"id":"k-1","subscribers":2}`)
	s := &script{entries: []func(*http.Request, string) (*http.Response, error){answer}}
	publish := func(draft Draft) error {
		draft.Target, draft.Data = Channel("a"), "x"
		_, err := publishWith(t, s, Options{}, func(client *Client) (Published, error) {
			return client.PublishDraft(context.Background(), draft)
		})
		return err
	}
	draft := Draft{Event: "Größe", Tags: map[string]any{"symbol": "ACMÉ", "n": 2}}
	if err := publish(draft); err != nil {
		t.Fatal(err)
	}
	header := s.sent[0].Header
	if header.Get("Throng-Event") != "Größe" || header.Get("Throng-Tags") != `{"n":2,"symbol":"ACMÉ"}` {
		t.Error(header)
	}
	line, err := draft.line()
	if err != nil || !strings.Contains(string(line), `"event":"Größe"`) || !strings.Contains(string(line), `"n":2`) {
		t.Error(string(line), err)
	}
	for _, draft := range []Draft{{Event: "a\nb"}, {Event: "\xff"}, {Tags: map[string]any{"a": t.Log}}} {
		if err := publish(draft); err == nil || len(s.sent) != 1 {
			t.Error(draft, "was published")
		}
	}
}

func publishVolatileTo(t *testing.T, s *script, draft Draft) (Published, error) {
	t.Helper()
	draft.Target, draft.Data = Channel("a"), "typing"
	return publishWith(t, s, Options{}, func(client *Client) (Published, error) {
		return client.PublishVolatile(context.Background(), draft)
	})
}

func TestAVolatileMessageHasNoKeyAndNoID(t *testing.T) {
	answer := says(201, `{"volatile":true,"subscribers":2}`)
	s := &script{entries: []func(*http.Request, string) (*http.Response, error){answer}}
	published, err := publishVolatileTo(t, s, Draft{Exclude: "c1"})
	if err != nil || published != (Published{Subscribers: 2}) {
		t.Fatal(published, err)
	}
	sent := s.sent[0]
	_, hasKey := sent.Header["Idempotency-Key"]
	if hasKey || sent.URL.RequestURI() != "/channels/a?volatile=true" || s.bodies[0] != "typing" {
		t.Error(sent.Header, sent.URL, s.bodies)
	}
	if sent.Header.Get("Throng-Exclude") != "c1" {
		t.Error(sent.Header)
	}
	for _, draft := range []Draft{{Key: "k"}, {ExpiresIn: time.Second}} {
		if _, err := publishVolatileTo(t, s, draft); err == nil || len(s.sent) != 1 {
			t.Error(draft, "was published")
		}
	}
}

func TestAVolatileMessageHasOneAttempt(t *testing.T) {
	type entry = func(*http.Request, string) (*http.Response, error)
	for _, each := range []struct {
		entry   entry
		code    string
		outcome Outcome
	}{
		{cut, "timeout", Unknown},
		{refused, "timeout", Unpublished},
		{refuses(503, "busy"), "busy", Unpublished},
		{refuses(400, "bad_request"), "bad_request", Unpublished},
		{says(502, "bad gateway"), "http_502", Unknown},
		// It is not from Throng.
		{says(200, "{}"), "timeout", Unknown},
	} {
		s := &script{entries: []entry{each.entry, says(201, `{"volatile":true,"subscribers":2}`)}}
		_, err := publishVolatileTo(t, s, Draft{})
		var failed *Error
		if !errors.As(err, &failed) {
			t.Fatal(err)
		}
		if failed.Code != each.code || failed.Outcome != each.outcome || failed.Key != "" {
			t.Errorf("got %+v, want %s %s", failed, each.code, each.outcome)
		}
		if len(s.sent) != 1 {
			t.Errorf("%s: %d attempts", each.code, len(s.sent))
		}
	}
}

func TestARefusedTokenIsReplacedOnce(t *testing.T) {
	s := &script{entries: []func(*http.Request, string) (*http.Response, error){refuses(401, "token_expired"), done}}
	made := 0
	_, err := publishTo(t, s, Options{GetToken: func(context.Context) (string, error) {
		made++
		return fmt.Sprint("token", made), nil
	}})
	if err != nil || s.sent[1].Header.Get("Authorization") != "Bearer token2" {
		t.Error(err, len(s.sent))
	}
}

func TestABatchIsSplitAndOnlyWhatMaySucceedIsSentAgain(t *testing.T) {
	first := true
	accept := func(r *http.Request, body string) (*http.Response, error) {
		var answers bytes.Buffer
		for _, text := range strings.Split(strings.TrimSpace(body), "\n") {
			var line struct{ Data int }
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Error(err)
			}
			switch {
			case first && line.Data == 1:
				answers.WriteString(`{"error":"busy","message":"wait"}` + "\n")
			case line.Data == 2:
				answers.WriteString(`{"error":"bad_name","message":"no"}` + "\n")
			default:
				fmt.Fprintf(&answers, `{"id":"e-%d","subscribers":0}`+"\n", line.Data)
			}
		}
		first = false
		return says(200, answers.String())(r, body)
	}
	s := &script{entries: []func(*http.Request, string) (*http.Response, error){accept}}
	synctest.Test(t, func(t *testing.T) {
		client, err := New("http://127.0.0.1:1", Options{HTTPClient: &http.Client{Transport: s}})
		if err != nil {
			t.Fatal(err)
		}
		drafts := make([]Draft, 2500)
		for number := range drafts {
			drafts[number] = Draft{Target: Channel("a"), Data: number}
		}
		results, err := client.PublishBatch(context.Background(), drafts)
		if err != nil {
			t.Fatal(err)
		}
		for number, result := range results {
			if number == 2 {
				if result.Err == nil || result.Err.Code != "bad_name" || result.Err.Outcome != Unpublished {
					t.Error(result)
				}
			} else if result.Err != nil || result.ID != fmt.Sprint("e-", number) {
				t.Error(number, result)
			}
		}
	})
	var counts []int
	for _, body := range s.bodies {
		counts = append(counts, strings.Count(body, "\n"))
	}
	if !slices.Equal(counts, []int{1000, 1, 1000, 500}) {
		t.Error(counts)
	}
}

func trace(r *http.Request) {
	if hooks := httptraceOf(r); hooks != nil {
		hooks()
	}
}

// httptraceOf tells the client that there was a connection, as a real transport does.
func httptraceOf(r *http.Request) func() {
	hooks := httptrace.ContextClientTrace(r.Context())
	if hooks == nil || hooks.GotConn == nil {
		return nil
	}
	return func() { hooks.GotConn(httptrace.GotConnInfo{}) }
}
