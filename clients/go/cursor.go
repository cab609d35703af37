package throng

import (
	"slices"
	"sync"
)

// A peer that sends something else, as a proxy or another server does.
const notThrongPeer = "the peer is not a Throng server"

// An event is a message, one that cannot be read, a gap, messages that were skipped or erased, who
// follows a channel, the end of a state, or that of a channel.
type event struct {
	message    *Message
	unreadable *Unreadable
	gap        *Gap
	conflated  *Conflated
	erased     *Erased
	presence   *PresenceEvent
	stateEnd   *StateEnd
	ended      *Ended
	unread     *Unread
	// handled is the link whose server asks when the events of a frame, which are before this place,
	// are handled.
	handled *socketLink
}

// place is where the event is in the log of its channel. Only what has an id has a place.
func (e event) place() (target Target, id string, hasPlace bool) {
	switch {
	case e.gap != nil:
		return e.gap.Target, e.gap.ID, true
	case e.stateEnd != nil:
		return e.stateEnd.Target, e.stateEnd.ID, true
	case e.unreadable != nil:
		return e.unreadable.Target, e.unreadable.ID, e.unreadable.ID != ""
	case e.erased != nil:
		return e.erased.Target, e.erased.ID, true
	case e.message != nil:
		return e.message.Target, e.message.ID, e.message.ID != ""
	}
	return Target{}, "", false
}

// A cursor is the position of a subscription in one channel.
//
// Invariant: the position is an id from the server, and no message after it has been handed on. So
// a link may be lost at any time and resumed from the positions. While a state begins there is none: if
// the link is lost, all of it comes again, after a gap.
type cursor struct {
	target Target
	// position is the id to resume after; empty until the server has named one.
	position string
	// head is the newest id at the time of subscribing: messages up to it are replayed.
	head string
	// isSilent: the inbox of the client's user, which the connection follows without a subscription.
	isSilent bool
	// wantsState: the subscription begins with the newest message of each key. isBeginning: these are
	// coming.
	wantsState, isBeginning bool
	hasStarted              bool
	// hasEnded: the channel has, and is followed no more.
	hasEnded bool
	// first is where the subscription started.
	first     string
	delivered string
	// seenAt is the time of the last presence event in ms since 1970, 0 if there was none.
	seenAt int64
	// seenID is the id of the last event of a member, empty if there was none.
	seenID string
	roster roster
}

// isSettled says whether it is known where older messages end, and where to resume.
func (c *cursor) isSettled() bool {
	return c.hasStarted || (c.head != "" && c.position != "")
}

// settle takes where older messages end, if that is not known yet.
func (c *cursor) settle(head string) {
	if !c.hasStarted && c.head == "" {
		c.head = head
	}
}

// follow takes the server's confirmation. isLost says that messages are missing.
func (c *cursor) follow(id, head string, isLost bool) []event {
	c.roster.begin()
	if !c.hasStarted {
		c.hasStarted = true
		c.isBeginning = c.wantsState && c.position == ""
		if c.position == "" && !c.isBeginning {
			c.position = id
		}
		c.first = c.position
		if c.head == "" {
			c.head = head
		}
	} else if c.isBeginning && c.position == "" {
		isLost = true
	}
	if !isLost {
		return nil
	}
	events := c.gap(id, 0)
	if c.wantsState {
		c.isBeginning = true
		c.position, c.first, c.head, c.delivered = "", "", "", ""
	}
	return events
}

// endState takes the end of a state, as it was at the message with this id.
func (c *cursor) endState(id string) ([]event, error) {
	if _, _, isID := splitID(id); !isID {
		return nil, unusable(notThrongPeer)
	}
	c.isBeginning = false
	c.position = id
	return []event{{stateEnd: &StateEnd{Target: c.target, ID: id}}}, nil
}

func (c *cursor) gap(id string, missed int) []event {
	if id == "" {
		id = c.position
	}
	if !c.isBeginning {
		c.position = id
	}
	if c.isSilent {
		return nil
	}
	return []event{{gap: &Gap{Target: c.target, ID: id, Missed: missed}}}
}

// take takes a message; one that was taken before yields nothing. One that cannot be read is passed
// over: it would be the same the next time.
func (c *cursor) take(envelope *fields) ([]event, error) {
	if envelope.ID == "" && len(envelope.Data) > 0 {
		// A volatile message is not kept, and moves no position.
		return c.read(envelope, false), nil
	}
	if _, _, isID := splitID(envelope.ID); !isID {
		return nil, unusable(notThrongPeer)
	}
	if isUpTo(envelope.ID, c.delivered) {
		return nil, nil
	}
	if isUpTo(envelope.ID, c.first) {
		// A poll names where its answer ends, not where it begins.
		c.first = idBefore(envelope.ID)
	}
	isReplayed := isUpTo(envelope.ID, c.head)
	c.delivered = envelope.ID
	if !c.isBeginning {
		c.position = envelope.ID
	}
	if !isReplayed {
		c.head = ""
	}
	return c.read(envelope, isReplayed), nil
}

// read is the event of a message, or of one that cannot be read.
func (c *cursor) read(envelope *fields, isReplayed bool) []event {
	if c.isSilent {
		return nil
	}
	if envelope.isNotice() {
		return []event{{erased: &Erased{
			Target: c.target, ID: envelope.ID, Erased: envelope.Erased, ErasedUpTo: envelope.ErasedUpTo,
		}}}
	}
	message, err := envelope.toMessage(isReplayed)
	if err != nil {
		unreadable := envelope.toUnreadable(err)
		return []event{{unreadable: &unreadable}}
	}
	return []event{{message: &message}}
}

// skip takes that messages were skipped for newer ones, which changes no position.
func (c *cursor) skip(count int) []event {
	if c.isSilent {
		return nil
	}
	return []event{{conflated: &Conflated{Target: c.target, Count: count}}}
}

// see takes a presence event, which changes no position.
func (c *cursor) see(frame *fields) []event {
	if frame.Event != "" {
		c.seenID = frame.ID
		seen := c.roster.take(c.target, frame)
		if seen == nil {
			return nil
		}
		return []event{{presence: seen}}
	}
	c.seenAt = frame.Time
	seen := frame.toPresence()
	return []event{{presence: &seen}}
}

// cursors are those of a subscription, in the order of URLs: the user is last.
type cursors struct {
	// mu is held while all changes, and by other goroutines that read it.
	mu sync.Mutex
	// all are followed; ended were, until their channels have ended.
	all     []*cursor
	ended   []*cursor
	history int
	// hasPresence: the subscription wants presence events, of all of its channels.
	hasPresence bool
	// paceMs is the pace of its channels in ms, 0 if they have none.
	paceMs   int64
	shown    *shown
	byTarget map[Target]*cursor
}

// of is the cursor of a channel that is followed.
func (c *cursors) of(target Target) *cursor {
	if each := c.known(target); each != nil && !each.hasEnded {
		return each
	}
	return nil
}

// known is the cursor of a channel that is followed, or was until its end.
func (c *cursors) known(target Target) *cursor {
	if c.byTarget == nil {
		c.byTarget = make(map[Target]*cursor, len(c.all))
		for _, each := range c.all {
			c.byTarget[each.target] = each
		}
	}
	return c.byTarget[target]
}

// followed are those that are followed. Any goroutine may call it.
func (c *cursors) followed() []*cursor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

// unread takes how many messages of the inbox or a channel are unread, if that is told.
func (c *cursors) unread(told *fields) []event {
	inbox := c.inbox()
	if inbox == "" || told.Unread == nil {
		return nil
	}
	unread := Unread{User: inbox, ReadMarker: ReadMarker{told.Read, *told.Unread}}
	if told.Channel != nil {
		unread.Channel = *told.Channel
	}
	return []event{{unread: &unread}}
}

// end takes that a channel has ended, with its last id: it is followed no more.
func (c *cursors) end(each *cursor, id string) []event {
	c.known(each.target).hasEnded = true
	each.position = id
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = append(c.ended, each)
	c.all = slices.DeleteFunc(slices.Clone(c.all), func(it *cursor) bool { return it == each })
	return []event{{ended: &Ended{Target: each.target, ID: id}}}
}

// areOver says whether all channels have ended.
func (c *cursors) areOver() bool {
	return !slices.ContainsFunc(c.all, func(each *cursor) bool { return !each.isSilent })
}

func (c *cursors) have(is func(*cursor) bool) (some, all bool) {
	all = true
	for _, each := range c.all {
		if is(each) {
			some = true
		} else {
			all = false
		}
	}
	return some, all
}

func (c *cursors) havePositions() (some, all bool) {
	return c.have(func(each *cursor) bool { return each.position != "" })
}

func (c *cursors) positions() []string {
	positions := make([]string, len(c.all))
	for index, each := range c.all {
		positions[index] = each.position
	}
	return positions
}

// inbox is the user whose connection it is.
func (c *cursors) inbox() string {
	for _, each := range c.followed() {
		if each.target.IsUser() {
			return each.target.user
		}
	}
	return ""
}
