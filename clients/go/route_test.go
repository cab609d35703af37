package throng_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	throng "github.com/throng-push/throng/clients/go"
)

// A client changes from each lesser transport to a WebSocket while messages come: none is lost, doubled
// or out of order.
func TestTheChangeToABetterTransportLosesAndDoublesNothing(t *testing.T) {
	target, err := url.Parse(serve(t, ""))
	equal(t, err, nil)
	// Without X-Forwarded-For, which a server without keys refuses.
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1,
	}
	for _, lesser := range []throng.Transport{throng.SSE, throng.Poll} {
		t.Run(string(lesser), func(t *testing.T) {
			var hasSockets atomic.Bool
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Upgrade") != "" && !hasSockets.Load() {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				forward.ServeHTTP(w, r)
			}))
			defer proxy.Close()
			app := connect(t, target.String(), throng.Options{})
			client := connect(t, proxy.URL, throng.Options{
				Transports: []throng.Transport{throng.WebSocket, lesser},
				Random:     func() float64 { return 0 },
			})
			channel := throng.Channel("changes-" + string(lesser))
			s := client.Subscribe(channel)
			s.Since = map[throng.Target]string{channel: publish(t, app, channel, "before").ID}
			next, after := 0, 0
			s.OnGap = func(gap throng.Gap) { t.Error(gap) }
			var over throng.Transport
			s.OnState = func(state throng.State) {
				if state.Name == "open" {
					over = state.Transport
				}
			}
			publish(t, app, channel, next)
			for message, err := range s.Messages(ctxOf(t)) {
				equal(t, err, nil)
				equal(t, message.Text(), fmt.Sprint(next))
				if next == 3 {
					equal(t, over, lesser)
					hasSockets.Store(true)
					// After a loss it is tried sooner.
					proxy.CloseClientConnections()
				}
				if over == throng.WebSocket {
					after++
				}
				if after == 10 {
					break
				}
				next++
				publish(t, app, channel, next)
			}
			equal(t, after, 10)
		})
	}
}
