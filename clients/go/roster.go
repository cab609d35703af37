package throng

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// A Member is a member of a channel, as it shows itself.
type Member struct {
	// User is empty for a connection without a user.
	User string `json:"user"`
	// Connection is the name of the connection, where each one is a member.
	Connection string `json:"connection"`
	// Info is a JSON object, or nil.
	Info json.RawMessage `json:"info"`
}

// Key is the name of the member among the members of its channel.
func (m Member) Key() string {
	if m.Connection != "" {
		return m.Connection
	}
	return m.User
}

// A MemberPage is a part of a channel's list of members.
type MemberPage struct {
	Presence
	Members []Member `json:"members"`
	// Next is where the next page begins; empty if this is the last one.
	Next string `json:"next"`
}

// A roster keeps the members of one channel. Until the first list is complete, there is nothing to
// tell. What it has told is never changed.
type roster struct {
	members, listed map[string]Member
	isComplete      bool
	isPartial       bool
}

// begin: a list may come from now on.
func (r *roster) begin() { r.listed = map[string]Member{} }

// take takes the event of a member, or of the list: its end, or that it is partial from now on or
// whole. It returns nil if there is nothing to tell.
func (r *roster) take(target Target, frame *fields) *PresenceEvent {
	if frame.Member == nil {
		isTold := r.isPartial != frame.Partial
		r.isPartial = frame.Partial
		switch {
		case frame.Event == "state":
			return r.tell(target, maps.Clone(r.listed), frame.Time, isTold)
		case r.isComplete:
			return r.tell(target, r.members, frame.Time, isTold)
		}
		return nil
	}
	member := *frame.Member
	after := maps.Clone(r.members)
	for _, members := range []map[string]Member{r.listed, after} {
		switch {
		case members == nil:
		case frame.Event == "leave":
			delete(members, member.Key())
		default:
			members[member.Key()] = member
		}
	}
	if !r.isComplete {
		return nil
	}
	return r.tell(target, after, frame.Time, false)
}

// tell returns the event of a change; of none only if isTold.
func (r *roster) tell(target Target, after map[string]Member, at int64, isTold bool) *PresenceEvent {
	before, isFirst := r.members, !r.isComplete
	r.members, r.isComplete = after, true
	event := &PresenceEvent{Target: target, Time: time.UnixMilli(at), Members: after}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		member := after[key]
		if member.User != "" {
			event.Users = append(event.Users, member.User)
		}
		was, isKnown := before[key]
		switch {
		case isFirst:
		case !isKnown:
			event.Joined = append(event.Joined, key)
		case !bytes.Equal(was.Info, member.Info):
			event.Updated = append(event.Updated, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, isHere := after[key]; !isHere {
			event.Left = append(event.Left, Absence{User: key, LastSeen: time.UnixMilli(at)})
		}
	}
	slices.Sort(event.Users)
	event.Users = slices.Compact(event.Users)
	event.Connections, event.Partial = len(after), r.isPartial
	if !isFirst && !isTold && len(event.Joined)+len(event.Updated)+len(event.Left) == 0 {
		return nil
	}
	return event
}
