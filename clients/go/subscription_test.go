//go:build go1.25

package throng

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

func TestTheBackoffIsThatOfAllClients(t *testing.T) {
	text, err := os.ReadFile("../conformance/backoff.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Attempt int     `json:"attempt"`
		Random  float64 `json:"random"`
		DelayMs float64 `json:"delay_ms"`
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) == 0 {
		t.Fatal(err)
	}
	for _, each := range cases {
		got := backoff(each.Attempt, func() float64 { return each.Random })
		if got != time.Duration(each.DelayMs*float64(time.Millisecond)) {
			t.Errorf("%v: %v", each, got)
		}
	}
}

// A scriptedLink opens, and is lost, as a script says.
type scriptedLink struct {
	ctx    context.Context
	script []step
	opened bool
}

// held is a link that opens and is not lost.
var held = []step{{}}

var errNotProven = errors.New("it does not connect")

type step struct {
	after time.Duration
	err   error
}

func (s *scriptedLink) open() ([]event, error)       { return s.receive() }
func (s *scriptedLink) close()                       {}
func (s *scriptedLink) isOpen() bool                 { return s.opened }
func (s *scriptedLink) connection() string           { return "" }
func (s *scriptedLink) suspect(time.Time, time.Time) {}

func (s *scriptedLink) prove() error {
	if len(s.script) > 0 && s.script[0].err == errNotProven {
		return errNotProven
	}
	return nil
}

func (s *scriptedLink) receive() ([]event, error) {
	if len(s.script) == 0 {
		<-s.ctx.Done()
		return nil, context.Cause(s.ctx)
	}
	next := s.script[0]
	s.script = s.script[1:]
	sleep(s.ctx, next.after)
	s.opened = s.opened || next.err == nil
	return nil, next.err
}

// nobody answers no request.
type nobody struct{ answers bool }

func (n nobody) RoundTrip(*http.Request) (*http.Response, error) {
	if n.answers {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("ok"))}, nil
	}
	return nil, errors.New("nobody is here")
}

// run follows a channel for a time with scripted links; it returns when each was opened, and the
// transport at the end.
func run(t *testing.T, limit time.Duration, answers bool, scripts ...[]step) (opened []time.Duration, last Transport) {
	t.Helper()
	before := links
	defer func() { links = before }()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		scripted := func(ctx context.Context, _ *Client, _ *cursors, _ time.Duration) link {
			opened = append(opened, time.Since(began))
			made := &scriptedLink{ctx: ctx}
			if len(scripts) > 0 {
				made.script, scripts = scripts[0], scripts[1:]
			} else {
				made.script = held
			}
			return made
		}
		links = map[Transport]func(context.Context, *Client, *cursors, time.Duration) link{
			WebSocket: scripted, SSE: scripted, Poll: scripted,
		}
		client, err := New("http://127.0.0.1:1", Options{
			Random:     func() float64 { return 1 },
			HTTPClient: &http.Client{Transport: nobody{answers}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		s := client.Subscribe(Channel("a"))
		for range s.Messages(ctx) {
		}
		last = s.current()
	})
	return opened, last
}

func seconds(values ...float64) []time.Duration {
	var durations []time.Duration
	for _, value := range values {
		durations = append(durations, time.Duration(value*float64(time.Second)))
	}
	return durations
}

func TestLossesBackOffUpToTheCap(t *testing.T) {
	flaky := []step{{}, {err: lost("cut")}}
	opened, _ := run(t, 150*time.Second, false, slices.Repeat([][]step{flaky}, 9)...)
	want := seconds(0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5, 121.5)
	if !slices.Equal(opened, want) {
		t.Errorf("got %v, want %v", opened, want)
	}
}

func TestAStableConnectionStartsTheBackoffOver(t *testing.T) {
	flaky := []step{{}, {err: lost("cut")}}
	firm := []step{{}, {after: stable, err: lost("cut")}}
	opened, _ := run(t, 60*time.Second, false, flaky, flaky, firm, flaky)
	if want := seconds(0, 0.5, 1.5, 12, 13); !slices.Equal(opened, want) {
		t.Errorf("got %v, want %v", opened, want)
	}
}

func TestTheTimeOfTheServerIsObeyedAndIsNoFailure(t *testing.T) {
	full := []step{{err: &loss{message: "full", hint: 3 * time.Second, isOwn: true}}}
	opened, last := run(t, 10*time.Second, true, full, full, full)
	if want := seconds(0, 3, 6, 9); !slices.Equal(opened, want) || last != WebSocket {
		t.Errorf("got %v over %s, want %v", opened, last, want)
	}
}

func TestItFallsBackOnlyWhileTheServerAnswers(t *testing.T) {
	refused := []step{{err: unusable("no upgrade here")}}
	cut := []step{{err: lost("cut")}}
	for _, each := range []struct {
		answers bool
		scripts [][]step
		want    Transport
	}{
		{true, [][]step{refused, refused, refused, refused}, Poll},
		{true, [][]step{cut, cut, cut}, SSE},
		// A fresh attempt after the server has answered shows that it was one bad moment.
		{true, [][]step{refused}, WebSocket},
		{true, [][]step{cut, cut}, WebSocket},
		{false, [][]step{refused, refused, refused}, WebSocket},
	} {
		if _, last := run(t, 5*time.Second, each.answers, each.scripts...); last != each.want {
			t.Errorf("got %s, want %s", last, each.want)
		}
	}
}

func TestATransportThatOpensAndKeepsDyingIsGivenUp(t *testing.T) {
	dying := []step{{}, {after: 300 * time.Millisecond, err: lost("cut")}}
	opened, last := run(t, 5*time.Second, true, dying, dying, dying)
	if want := seconds(0, 0.8, 1.1, 1.4); !slices.Equal(opened, want) || last != SSE {
		t.Errorf("got %v over %s, want %v", opened, last, want)
	}
	slow := []step{{}, {after: stable, err: lost("cut")}}
	if _, last := run(t, 60*time.Second, true, slow, slow, slow, slow); last != WebSocket {
		t.Errorf("got %s after connections that held", last)
	}
}

func TestABetterTransportIsTriedAgainWhileALesserOneHolds(t *testing.T) {
	refused := []step{{err: unusable("no upgrade here")}}
	// Attempts at it fail after 10, 20 and 40 s; the next is after 80 s.
	bad := []step{{err: errNotProven}}
	opened, last := run(t, 140*time.Second, true, refused, refused, held, bad, bad, bad)
	if want := seconds(0, 0, 0, 10, 30, 70); !slices.Equal(opened, want) || last != SSE {
		t.Errorf("got %v over %s, want %v", opened, last, want)
	}
	opened, last = run(t, 170*time.Second, true, refused, refused, held, bad, bad, bad)
	if want := seconds(0, 0, 0, 10, 30, 70, 150); !slices.Equal(opened, want) || last != WebSocket {
		t.Errorf("got %v over %s, want %v", opened, last, want)
	}
	// After a loss of the lesser one it is tried sooner.
	cut := []step{{}, {after: 5 * time.Second, err: lost("cut")}}
	opened, last = run(t, 8*time.Second, true, refused, refused, cut)
	if want := seconds(0, 0, 0, 5.5, 5.5); !slices.Equal(opened, want) || last != WebSocket {
		t.Errorf("got %v over %s, want %v", opened, last, want)
	}
}

func TestABetterTransportThatDoesNotHoldIsLeftAtOnce(t *testing.T) {
	refused := []step{{err: unusable("no upgrade here")}}
	dying := []step{{}, {after: time.Second, err: lost("cut")}}
	opened, last := run(t, 14*time.Second, true, refused, refused, held, dying)
	if want := seconds(0, 0, 0, 10, 11); !slices.Equal(opened, want) || last != SSE {
		t.Errorf("got %v over %s, want %v", opened, last, want)
	}
}

func TestTheTimeToOpenGrowsOnASlowLine(t *testing.T) {
	options, err := Options{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r := route{}
	var times []time.Duration
	for range 6 {
		times = append(times, r.openTimeout(options))
		r.failed(late("too late"))
	}
	if want := seconds(3, 6, 12, 24, 30, 30); !slices.Equal(times, want) {
		t.Errorf("got %v, want %v", times, want)
	}
}

func TestANewerTokenIsUsedAtOnceAndOnlyOnce(t *testing.T) {
	stale := []step{{err: &loss{message: "expired", hint: noHint, isAnswer: true, isStale: true}}}
	cut := []step{{err: lost("cut")}}
	// Three attempts without the network, then one that shows an old token.
	opened, _ := run(t, 10*time.Second, false, cut, cut, cut, stale)
	if want := seconds(0, 0.5, 1.5, 3.5, 3.5); !slices.Equal(opened, want) {
		t.Errorf("got %v, want %v", opened, want)
	}
	opened, _ = run(t, 3*time.Second, false, stale, stale, stale)
	if want := seconds(0, 0, 0.5, 1.5); !slices.Equal(opened, want) {
		t.Errorf("got %v, want %v", opened, want)
	}
}

func TestAThousandClientsDoNotComeInWaves(t *testing.T) {
	before := links
	defer func() { links = before }()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		dice := rand.New(rand.NewPCG(1, 2))
		retries := map[time.Duration]int{}
		attempts := 0
		scripted := func(ctx context.Context, _ *Client, _ *cursors, _ time.Duration) link {
			mu.Lock()
			defer mu.Unlock()
			attempts++
			if attempts > 1000 {
				retries[time.Since(began).Truncate(50*time.Millisecond)]++
			}
			if attempts > 5000 {
				return &scriptedLink{ctx: ctx}
			}
			return &scriptedLink{ctx: ctx, script: []step{{err: lost("cut")}}}
		}
		links = map[Transport]func(context.Context, *Client, *cursors, time.Duration) link{WebSocket: scripted}
		client, err := New("http://127.0.0.1:1", Options{
			Transports: []Transport{WebSocket},
			Random: func() float64 {
				mu.Lock()
				defer mu.Unlock()
				return dice.Float64()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var clients sync.WaitGroup
		for range 1000 {
			clients.Go(func() {
				for range client.Subscribe(Channel("a")).Messages(ctx) {
				}
			})
		}
		clients.Wait()
		busiest := 0
		for _, count := range retries {
			busiest = max(busiest, count)
		}
		// If 1,000 clients spread evenly over the first half second, 100 come in each 50 ms.
		if attempts < 4000 || busiest >= 200 {
			t.Errorf("%d of %d attempts within 50 ms", busiest, attempts)
		}
	})
}

// pipes is a network in memory, whose time synctest controls.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, isOpen := <-p
	if !isOpen {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p <- server
	return client, nil
}

// follow subscribes to a server that answers what it is asked to; act runs beside. It returns when
// the server got a ping, and when the connection was lost.
func follow(t *testing.T, pongs bool, act func(*Client, context.Context)) (pings, losses []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		network := make(pipes)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") == "" {
				<-r.Context().Done()
				return
			}
			conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"throng.v1"}})
			if err != nil {
				return
			}
			write := func(text string) { _ = conn.Write(r.Context(), websocket.MessageText, []byte(text)) }
			write(`{"type":"welcome","connection":"c","heartbeat":25,"channels_max":128}`)
			for {
				_, text, err := conn.Read(context.Background())
				if err != nil {
					return
				}
				var frame fields
				_ = json.Unmarshal(text, &frame)
				if frame.Type == "subscribe" {
					write(`{"type":"subscribed","channel":"a","id":"e-0","ref":1}`)
				} else if frame.Type == "ping" {
					pings = append(pings, time.Since(began))
					if pongs {
						write(`{"type":"pong"}`)
					}
				}
			}
		})}
		go func() { _ = server.Serve(network) }()
		transport := &http.Transport{DialContext: network.dial}
		client, err := New("http://throng.test", Options{HTTPClient: &http.Client{Transport: transport}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var reader sync.WaitGroup
		s := client.Subscribe(Channel("a"))
		s.OnState = func(state State) {
			if state.Name == "waiting" {
				losses = append(losses, time.Since(began))
			}
		}
		reader.Go(func() {
			for range s.Messages(ctx) {
			}
		})
		act(client, ctx)
		cancel()
		reader.Wait()
		transport.CloseIdleConnections()
		close(network)
		_ = server.Close()
		synctest.Wait()
		time.Sleep(time.Minute)
	})
	return pings, losses
}

func TestASilentServerIsNoticedWithin30Seconds(t *testing.T) {
	pings, losses := follow(t, false, func(*Client, context.Context) { time.Sleep(30100 * time.Millisecond) })
	if !slices.Equal(pings, seconds(28)) || !slices.Equal(losses, seconds(30)) {
		t.Errorf("pings at %v, lost at %v", pings, losses)
	}
	pings, losses = follow(t, true, func(*Client, context.Context) { time.Sleep(85 * time.Second) })
	if !slices.Equal(pings, seconds(28, 56, 84)) || losses != nil {
		t.Errorf("pings at %v, lost at %v", pings, losses)
	}
}

func TestAnUnansweredRequestAsksForASignOfLife(t *testing.T) {
	ask := func(client *Client, ctx context.Context) {
		time.Sleep(time.Second)
		_, err := client.Presence(ctx, Channel("a"), 0)
		var failed *Error
		if !errors.As(err, &failed) || failed.Code != "timeout" {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	pings, losses := follow(t, false, ask)
	if !slices.Equal(pings, seconds(6)) || !slices.Equal(losses, seconds(11)) {
		t.Errorf("pings at %v, lost at %v", pings, losses)
	}
	if pings, losses = follow(t, true, ask); !slices.Equal(pings, seconds(6)) || losses != nil {
		t.Errorf("pings at %v, lost at %v", pings, losses)
	}
}
