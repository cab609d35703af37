package throng_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	throng "github.com/throng-push/throng/clients/go"
)

// nowhere fails each test that sends a request.
func nowhere(t *testing.T) *throng.Client {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s was sent", r.URL)
	}))
	t.Cleanup(server.Close)
	return connect(t, server.URL, throng.Options{})
}

func TestNamesAndTextsAreCheckedBeforeAnythingIsSent(t *testing.T) {
	client, ctx := nowhere(t), ctxOf(t)
	names := map[string]string{
		"": "bad_name", "a\nb": "bad_name", "a\u0085": "bad_name", "a//b": "bad_name", "/a": "bad_name",
		"a/": "bad_name", "..": "bad_name", "a/./b": "bad_name", strings.Repeat("é", 128): "bad_name",
		"a\xff": "bad_utf8", "a\xed\xa0\xbd": "bad_utf8",
	}
	for name, code := range names {
		for _, target := range []throng.Target{throng.Channel(name), throng.User(name)} {
			_, published := client.Publish(ctx, target, "x")
			_, read := client.History(ctx, target, throng.Page{})
			_, present := client.Presence(ctx, target, 0)
			results, err := client.PublishBatch(ctx, []throng.Draft{{Target: target, Data: "x"}})
			if err != nil {
				t.Fatal(err)
			}
			failures := []error{published, read, present, results[0].Err}
			for _, err := range client.Subscribe(throng.Channel("good"), target).Messages(ctx) {
				failures = append(failures, err)
			}
			for place, err := range failures {
				if codeOf(err) != code {
					t.Errorf("%q, %d: %v", name, place, err)
				}
			}
		}
	}
	pattern := throng.Channel("prices/*")
	if _, err := client.Publish(ctx, pattern, "x"); codeOf(err) != "bad_name" {
		t.Error(err)
	}
	for _, err := range client.Subscribe(pattern).Messages(ctx) {
		if codeOf(err) != "bad_name" {
			t.Error(err)
		}
	}
	_, err := client.Publish(ctx, throng.Channel("a"), "cut \xed\xa0\xbd")
	var refused *throng.Error
	if !errors.As(err, &refused) || refused.Code != "bad_utf8" || refused.Outcome != throng.Unpublished {
		t.Error(err)
	}
	for _, expiresIn := range []time.Duration{-1, time.Millisecond, 400 * 24 * time.Hour} {
		draft := throng.Draft{Target: throng.Channel("a"), Data: "x", ExpiresIn: expiresIn}
		if _, err := client.PublishDraft(ctx, draft); err == nil {
			t.Errorf("%v", expiresIn)
		}
	}
}

func TestNamesThatAPathMustEncodeAreInTheQuery(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.RequestURI)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error":"forbidden","message":"no"}`))
	}))
	defer server.Close()
	client := connect(t, server.URL, throng.Options{})
	for _, name := range []string{"plain-1", "rooms/garden"} {
		_, _ = client.Publish(ctxOf(t), throng.Channel(name), "x")
		_, _ = client.History(ctxOf(t), throng.User(name), throng.Page{Limit: 5})
		_, _ = client.Presence(ctxOf(t), throng.Channel(name), 0)
	}
	equal(t, asked, []string{
		"/channels/plain-1", "/users/plain-1/history?limit=5", "/channels/plain-1/presence",
		"/publish?channel=rooms%2Fgarden", "/history?limit=5&user=rooms%2Fgarden", "/presence?channel=rooms%2Fgarden",
	})
}

func TestAMessageExpires(t *testing.T) {
	client := connect(t, serve(t, ""), throng.Options{})
	draft := throng.Draft{Target: throng.Channel("a"), Data: "typing", ExpiresIn: time.Second}
	if _, err := client.PublishDraft(ctxOf(t), draft); err != nil {
		t.Fatal(err)
	}
	results, err := client.PublishBatch(ctxOf(t), []throng.Draft{draft, {Target: throng.Channel("a"), Data: "kept"}})
	if err != nil || results[0].Err != nil {
		t.Fatal(results, err)
	}
	for {
		page, err := client.History(ctxOf(t), throng.Channel("a"), throng.Page{})
		equal(t, err, nil)
		if len(page.Messages) == 1 {
			equal(t, page.Messages[0].Text(), "kept")
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestAMessageOverTheLimitFailsAtTheCall(t *testing.T) {
	client := connect(t, serve(t, "max-message-bytes = \"1KiB\"\n"), throng.Options{})
	// A WebSocket tells the limit.
	publish(t, client, throng.Channel("a"), "first")
	s := client.Subscribe(throng.Channel("a"))
	s.History = 1
	take(t, s, 1, nil)
	var refused *throng.Error
	_, err := client.Publish(ctxOf(t), throng.Channel("a"), strings.Repeat("x", 1025))
	if !errors.As(err, &refused) || refused.Code != "too_large" || refused.Status != 0 {
		t.Errorf("%+v", err)
	}
	publish(t, client, throng.Channel("a"), strings.Repeat("x", 1024))
}

func TestPublishersKeepTheirConnections(t *testing.T) {
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":"e-1","subscribers":0}`))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	client := connect(t, server.URL, throng.Options{})
	const publishers = 300
	var all sync.WaitGroup
	for range publishers {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 20 {
				if _, err := client.Publish(context.Background(), throng.Channel("a"), "x"); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	// A dial may have lost the race against a connection that became idle.
	if count := opened.Load(); count > 2*publishers {
		t.Errorf("%d connections for %d publishers", count, publishers)
	}
}
