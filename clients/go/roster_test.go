package throng

import (
	"encoding/json"
	"reflect"
	"testing"
)

// see feeds a cursor with an event of a member, and returns what it tells.
func seeMember(t *testing.T, c *cursor, event, user, info string) *PresenceEvent {
	t.Helper()
	frame := &fields{Event: event, ID: "e-1", Time: 7}
	frame.Partial = event == "partial state" || event == "partial"
	if event == "partial state" {
		frame.Event = "state"
	}
	if user != "" {
		frame.Member = &Member{User: user, Info: json.RawMessage(info)}
	}
	events := c.see(frame)
	if len(events) == 0 {
		return nil
	}
	return events[0].presence
}

func TestMembersAreToldOnceTheListIsComplete(t *testing.T) {
	c := &cursor{target: Channel("room")}
	c.follow("e-0", "", false)
	for _, event := range [][2]string{{"join", "ann"}, {"leave", "zoe"}, {"join", "bob"}} {
		if told := seeMember(t, c, event[0], event[1], `{}`); told != nil {
			t.Fatalf("%v before the list is complete", told)
		}
	}
	first := seeMember(t, c, "state", "", "")
	if first.Connections != 2 || !reflect.DeepEqual(first.Users, []string{"ann", "bob"}) || first.Joined != nil {
		t.Fatalf("the list is %+v", first)
	}
	if told := seeMember(t, c, "update", "ann", `{}`); told != nil {
		t.Fatalf("%v is known", told)
	}
	told := seeMember(t, c, "update", "ann", `{"n":1}`)
	if !reflect.DeepEqual(told.Updated, []string{"ann"}) || string(told.Members["ann"].Info) != `{"n":1}` {
		t.Fatalf("the change is %+v", told)
	}
	if told := seeMember(t, c, "join", "cy", `{}`); !reflect.DeepEqual(told.Joined, []string{"cy"}) {
		t.Fatalf("the change is %+v", told)
	}
	// All of it comes again, without bob.
	c.follow("e-0", "", false)
	seeMember(t, c, "update", "ann", `{"n":1}`)
	if told := seeMember(t, c, "leave", "bob", ""); len(told.Left) != 1 || told.Left[0].User != "bob" {
		t.Fatalf("the change is %+v", told)
	}
	told = seeMember(t, c, "state", "", "")
	if len(told.Left) != 1 || told.Left[0].User != "cy" || len(told.Members) != 1 {
		t.Fatalf("the difference is %+v", told)
	}
	if len(first.Members) != 2 {
		t.Fatal("what was told has changed")
	}
}

func TestAListOfANodeThatIsCutOffIsPartialUntilTheNextOne(t *testing.T) {
	c := &cursor{target: Channel("room")}
	c.follow("e-0", "", false)
	seeMember(t, c, "join", "ann", `{}`)
	if first := seeMember(t, c, "partial state", "", ""); !first.Partial {
		t.Fatalf("the list is %+v", first)
	}
	if joined := seeMember(t, c, "join", "bob", `{}`); !joined.Partial {
		t.Fatalf("the change is %+v", joined)
	}
	c.follow("e-0", "", false)
	seeMember(t, c, "join", "ann", `{}`)
	seeMember(t, c, "join", "bob", `{}`)
	whole := seeMember(t, c, "state", "", "")
	if whole == nil || whole.Partial || len(whole.Members) != 2 || whole.Joined != nil {
		t.Fatalf("the list is %+v", whole)
	}
}

func TestAListThatBecomesPartialOrWholeIsTold(t *testing.T) {
	c := &cursor{target: Channel("room")}
	c.follow("e-0", "", false)
	if early := seeMember(t, c, "partial", "", ""); early != nil {
		t.Fatalf("without a list there is %+v", early)
	}
	seeMember(t, c, "join", "ann", `{}`)
	seeMember(t, c, "state", "", "")
	if partial := seeMember(t, c, "partial", "", ""); !partial.Partial || len(partial.Members) != 1 {
		t.Fatalf("the list is %+v", partial)
	}
	if again := seeMember(t, c, "partial", "", ""); again != nil {
		t.Fatalf("it is told again: %+v", again)
	}
	// As after a poll that has failed: what comes is no list.
	c.follow("e-0", "", false)
	seeMember(t, c, "leave", "ann", `{}`)
	seeMember(t, c, "join", "bob", `{}`)
	whole := seeMember(t, c, "whole", "", "")
	if whole == nil || whole.Partial || len(whole.Members) != 1 || len(whole.Users) != 1 || whole.Left != nil {
		t.Fatalf("the list is %+v", whole)
	}
	if again := seeMember(t, c, "whole", "", ""); again != nil {
		t.Fatalf("it is told again: %+v", again)
	}
}
