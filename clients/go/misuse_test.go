package throng_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	throng "github.com/throng-push/throng/clients/go"
)

func codeOf(err error) string {
	var refused *throng.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

func TestBadOptionsAreRefused(t *testing.T) {
	for want, options := range map[string]throng.Options{
		"PollWait must be at least 1s": {PollWait: time.Millisecond},
		"the Token has a space":        {Token: "from a file\n"},
		"Timeout of HTTPClient":        {HTTPClient: &http.Client{Timeout: time.Second}},
		"there is no transport":        {Transports: []throng.Transport{"websockets"}},
	} {
		if _, err := throng.New("http://127.0.0.1:1", options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestANegativeHistoryIsRefused(t *testing.T) {
	client, err := throng.New("http://127.0.0.1:1", throng.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := client.Subscribe(throng.Channel("a"))
	s.History = -1
	for _, err := range s.Messages(context.Background()) {
		if err == nil || !strings.Contains(err.Error(), "0 or more, not -1") {
			t.Error(err)
		}
	}
}

func TestWhatNoHeaderMayHaveIsRefusedAtOnce(t *testing.T) {
	client, err := throng.New("http://127.0.0.1:1", throng.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, draft := range []throng.Draft{{Key: "a\nb"}, {Key: "schlüssel"}, {ContentType: "a\r\nb: c"}, {Exclude: "\x00"}} {
		draft.Target, draft.Data = throng.Channel("a"), "x"
		_, err := client.PublishDraft(context.Background(), draft)
		_, errOfBatch := client.PublishBatch(context.Background(), []throng.Draft{draft})
		for _, err := range []error{err, errOfBatch} {
			if err == nil || !strings.Contains(err.Error(), "is not printable ASCII") {
				t.Errorf("%q: %v", draft, err)
			}
		}
	}
	other, err := throng.New("http://127.0.0.1:1", throng.Options{
		GetToken: func(context.Context) (string, error) { return "two words", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.History(context.Background(), throng.Channel("a"), throng.Page{}); codeOf(err) != "token_failed" {
		t.Error(err)
	}
}

func TestARedirectOfAPublicationIsAnError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Redirect(w, r, "/elsewhere", http.StatusMovedPermanently)
		}
	}))
	defer server.Close()
	client, err := throng.New(server.URL, throng.Options{PublishTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Publish(context.Background(), throng.Channel("a"), "x")
	if codeOf(err) != "timeout" || !strings.Contains(err.Error(), "another server answered 301: go to /elsewhere") {
		t.Error(err)
	}
}

// A loop that is left at any moment leaves no goroutine behind.
func TestNothingIsLeftOfASubscription(t *testing.T) {
	url := serve(t, "")
	for _, transport := range all {
		transportOfHTTP := &http.Transport{}
		client, err := throng.New(url, throng.Options{
			Transports: []throng.Transport{transport},
			HTTPClient: &http.Client{Transport: transportOfHTTP},
		})
		if err != nil {
			t.Fatal(err)
		}
		before := runtime.NumGoroutine()
		for step := range 20 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(step)*time.Millisecond)
			for range client.Subscribe(throng.Channel("left")).Messages(ctx) {
				break
			}
			cancel()
		}
		deadline := time.Now().Add(waitMax)
		for runtime.NumGoroutine() > before {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%s: %s", transport, stacks[:runtime.Stack(stacks, true)])
			}
			transportOfHTTP.CloseIdleConnections()
			time.Sleep(10 * time.Millisecond)
		}
	}
}
