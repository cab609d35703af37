package throng

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

var inTest = numbered{cursor: &cursor{target: Channel("a")}, epoch: "e-"}

func TestACompactMessageHasTheFieldsOfItsEnvelope(t *testing.T) {
	item := `[17, 5 ,{"n":[1,"],["]},1763756766123,{"content_type":"application/x+json","expires":5}]`
	found, err := parseCompact([]byte(item), true)
	if err != nil || found.number != 17 {
		t.Fatal(found, err)
	}
	envelope := found.envelope(inTest)
	message, err := envelope.toMessage(false)
	if err != nil {
		t.Fatal(err)
	}
	want := Message{
		Target: Channel("a"), ID: "e-5", Time: time.UnixMilli(1763756766123),
		Data: []byte(`{"n":[1,"],["]}`), ContentType: "application/x+json",
	}
	if message.Target != want.Target || message.ID != want.ID || !message.Time.Equal(want.Time) ||
		message.Text() != want.Text() || message.ContentType != want.ContentType {
		t.Errorf("got %+v", message)
	}
	bytes := base64.StdEncoding.EncodeToString([]byte{0, 255})
	found, err = parseCompact([]byte(`[17,null,"`+bytes+`",{"encoding":"base64"}]`), true)
	envelope = found.envelope(inTest)
	message, _ = envelope.toMessage(false)
	if err != nil || message.ID != "" || message.Text() != "\x00\xff" || !message.Time.IsZero() {
		t.Errorf("got %+v, %v", message, err)
	}
}

func TestWhatIsNoCompactMessageIsRefused(t *testing.T) {
	for _, item := range []string{
		"", "5", "[]", "[1]", `["a",1,2]`, "[1,-2,3]", "[1,2.5,3]", "[1,1]", "[1,0]", `[1,"x"]`, `{"a":1,"b":2}`,
	} {
		if found, err := parseCompact([]byte(item), true); err == nil {
			t.Errorf("read %s as %+v", item, found)
		}
	}
	skipped, err := parseCompact([]byte("[1,-3]"), true)
	if err != nil || skipped.skipped != 3 {
		t.Error(skipped, err)
	}
}

func TestAnItemThatIsNoJSONIsPassedOver(t *testing.T) {
	each := &cursor{target: Channel("a"), position: "e-4"}
	found, err := parseCompact([]byte("[17,5,[1,,2],3]"), false)
	if err != nil {
		t.Fatal(err)
	}
	envelope := found.envelope(numbered{each, "e-"})
	events, err := each.take(&envelope)
	if err != nil || len(events) != 1 || events[0].unreadable.ID != "e-5" || each.position != "e-5" {
		t.Error(events, err)
	}
}

func TestAVolatileMessageMovesNoPosition(t *testing.T) {
	each := &cursor{target: Channel("a"), position: "e-4", delivered: "e-4"}
	volatile := fields{Data: []byte(`"typing"`), Channel: &each.target.channel}
	events, err := each.take(&volatile)
	if err != nil || len(events) != 1 || events[0].message.ID != "" || each.position != "e-4" {
		t.Error(events, err, each.position)
	}
	if _, _, hasPlace := events[0].place(); hasPlace {
		t.Error("it has a place")
	}
	if _, err := each.take(&fields{Channel: &each.target.channel}); err == nil {
		t.Error("a message without id and data is none")
	}
}

func TestAPaceIsTheSubscriptionsOrElseThatOfAll(t *testing.T) {
	all := ConnectionOptions{Pace: 100 * time.Millisecond}
	for own, want := range map[time.Duration]int64{0: 100, time.Second: 1_000, 10 * time.Millisecond: 10} {
		if got, err := all.paceMs(own); got != want || err != nil {
			t.Errorf("%v: got %v, %v", own, got, err)
		}
	}
	for _, pace := range []time.Duration{time.Millisecond, 2 * time.Minute, 10*time.Millisecond + 1, -1} {
		if _, err := (ConnectionOptions{}).paceMs(pace); err == nil {
			t.Errorf("%v is a pace", pace)
		}
		if _, err := New("http://127.0.0.1:1", Options{Params: ConnectionOptions{Pace: pace}}); err == nil {
			t.Errorf("%v is a pace", pace)
		}
	}
}

// A frame of the feed that the README of the server is measured with: 13 prices.
func frameOfPrices() []byte {
	item := `[17,123456,{"p":187.4,"b":12,"s":"NYSE"},1763756766123]`
	return []byte("[0," + strings.Repeat(item+",", 12) + item + "]")
}

func BenchmarkAFrameOf13(b *testing.B) {
	each := &cursor{target: Channel("a")}
	s := &socketLink{numbered: map[uint64]numbered{17: {each, "e-"}}, live: map[*cursor]backlog{each: ""}}
	text := frameOfPrices()
	b.ReportAllocs()
	for range b.N {
		each.delivered = ""
		if _, err := s.takeMany(text); err != nil {
			b.Fatal(err)
		}
	}
}

func Benchmark13Envelopes(b *testing.B) {
	each := &cursor{target: Channel("a")}
	text := []byte(`{"type":"message","channel":"a","id":"k3v9x2abc-123456","time":1763756766123,"data":{"p":187.4,"b":12,"s":"NYSE"}}`)
	b.ReportAllocs()
	for range b.N {
		for range 13 {
			each.delivered = ""
			var envelope fields
			if err := parse(text, &envelope); err != nil {
				b.Fatal(err)
			}
			if _, err := each.take(&envelope); err != nil {
				b.Fatal(err)
			}
		}
	}
}
