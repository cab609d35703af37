package throng

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// deep is JSON that encoding/json does not read.
var deep = strings.Repeat("[", 12_000) + strings.Repeat("]", 12_000)

func envelopeOf(offset int, data string) string {
	return fmt.Sprintf(`{"type":"message","channel":"a","id":"e-%d","time":1,"data":%s}`, offset, data)
}

func TestPartsOfAnyDepth(t *testing.T) {
	for text, want := range map[string]string{
		`{"a" : [1,{"b":2}], "c":"x,:}\"y"}`: `"a"|[1,{"b":2}]|"c"|"x,:}\"y"`,
		`[ 1 , [2,3] ]`:                      `1|[2,3]`,
	} {
		found, isWhole := parts([]byte(text))
		var shown []string
		for _, each := range found {
			shown = append(shown, string(each))
		}
		if got := strings.Join(shown, "|"); got != want || !isWhole {
			t.Errorf("%s: got %s", text, got)
		}
	}
	for _, text := range []string{"", "5", `"a"`, `{"a":1`, `{"a":"`, `{"a":1}}`, `[[1]`, `"\`} {
		if _, isWhole := parts([]byte(text)); isWhole {
			t.Errorf("%s is whole", text)
		}
	}
}

func TestAMessageThatCannotBeReadIsPassedOver(t *testing.T) {
	each := &cursor{target: Channel("a"), position: "e-0"}
	var frame fields
	if err := parse([]byte(envelopeOf(1, deep)), &frame); err != nil {
		t.Fatal(err)
	}
	events, err := each.take(&frame)
	if err != nil || len(events) != 1 || events[0].unreadable.ID != "e-1" || each.position != "e-1" {
		t.Errorf("got %v, %v at %s", events, err, each.position)
	}
	for _, text := range []string{`{"type":"message","channel":"a","id":5}`, envelopeOf(1, deep)[:20_000], deep} {
		if err := parse([]byte(text), &fields{}); err == nil {
			t.Errorf("read %.60s", text)
		}
	}
}

func TestAPageOfHistoryHasItsReadableMessages(t *testing.T) {
	messages := strings.Join([]string{envelopeOf(1, `"x"`), envelopeOf(2, deep), envelopeOf(3, `{"n":1}`)}, ",")
	history, err := parseHistory([]byte(`{"id":"e-3","messages":[` + messages + `],"more":true}`))
	if err != nil || len(history.Messages) != 2 || len(history.Unreadable) != 1 {
		t.Fatal(history.Messages, err)
	}
	if history.ID != "e-3" || !history.More || history.Unreadable[0].ID != "e-2" || history.Messages[1].Text() != `{"n":1}` {
		t.Error(history.ID, history.More)
	}
	for _, text := range []string{"", "<html>", "{}", "[]", `{"messages":[{}]}`} {
		if _, err := parseHistory([]byte(text)); err == nil {
			t.Errorf("read %q", text)
		}
	}
}

// A poll whose answer breaks off leaves its positions where they were; the next one gets the rest.
func TestNoPositionIsBeyondWhatAPollHasDelivered(t *testing.T) {
	client, err := New("http://127.0.0.1:1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range []struct {
		lines    []string
		position string
		count    int
	}{
		{[]string{`{"type":"message"`, envelopeOf(2, `"y"`)}, "", 0},
		{[]string{envelopeOf(1, `"x"`), `{"type":"message"`, envelopeOf(2, `"y"`)}, "e-1", 1},
		{[]string{envelopeOf(1, deep), envelopeOf(2, `"y"`)}, "e-9", 2},
	} {
		all := &cursors{all: []*cursor{{target: Channel("a"), head: "e-9"}}, history: 5}
		poll := newPollLink(context.Background(), client, all, time.Second).(*pollLink)
		body := strings.Join(each.lines, "\n")
		says := &answer{status: 200, header: map[string][]string{"Throng-Id": {"e-9"}}, body: []byte(body)}
		events, _ := poll.taken(says, all.positions(), false)
		if len(events) != each.count || all.all[0].position != each.position {
			t.Errorf("%.50s: %d events, at %q", body, len(events), all.all[0].position)
		}
		poll.close()
	}
}
