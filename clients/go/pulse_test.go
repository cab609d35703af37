package throng

import (
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// newPulse is one with a heartbeat of 25 s and requests of 10 s, on which a frame arrives at 0.
func newPulse() *pulse {
	made := &pulse{heartbeat: 25 * time.Second, patience: 10 * time.Second}
	made.heard(at(0))
	return made
}

func expectDue(t *testing.T, p *pulse, seconds float64, isWaiting bool) {
	t.Helper()
	if p.due() != at(seconds) || p.isWaiting() != isWaiting {
		t.Fatalf("due after %v, %v, not after %v s, %v", p.due().Sub(start), p.isWaiting(), seconds, isWaiting)
	}
}

func TestASilentServerIsAskedAfter28sAndLostAfter30s(t *testing.T) {
	p := newPulse()
	expectDue(t, p, 28, false)
	p.pinged(at(28))
	p.left(at(28))
	p.cameBack(at(28))
	expectDue(t, p, 30, true)
	// Unless nobody has read, so that it may lie ready.
	p.left(at(29))
	p.cameBack(at(40))
	expectDue(t, p, 45, true)
}

func TestAHeartbeatInPlaceOfAPongGivesItMoreTimeAndNoSecondLife(t *testing.T) {
	p := newPulse()
	p.pinged(at(28))
	p.heard(at(29))
	expectDue(t, p, 38, true)
	p.heard(at(37))
	expectDue(t, p, 38, true)
	p.answered(at(37.5), true)
	expectDue(t, p, 37+28, false)
}

func TestFramesDoNotHideAnUnansweredCommand(t *testing.T) {
	p := newPulse()
	p.asked(at(1))
	for second := 2.0; second < 11; second++ {
		p.asked(at(second))
		p.heard(at(second))
		expectDue(t, p, 11, true)
	}
}

func TestTheAnswerToOneCommandGivesTheNextItsTime(t *testing.T) {
	p := newPulse()
	p.asked(at(1))
	p.asked(at(2))
	p.heard(at(9))
	p.answered(at(9), false)
	expectDue(t, p, 19, true)
}

func TestAnUnansweredRequestOfAnotherConnectionHasItsOwnTime(t *testing.T) {
	p := newPulse()
	p.doubted(at(6), at(11))
	p.heard(at(7))
	expectDue(t, p, 11, true)
	p.answered(at(8), true)
	expectDue(t, p, 7+28, false)
	// An answer takes some time, however late it is asked for.
	p.doubted(at(20), at(11))
	expectDue(t, p, 22, true)
}

func TestTimeInWhichNobodyReadsDoesNotCount(t *testing.T) {
	p := newPulse()
	p.asked(at(0))
	p.cameBack(at(1))
	p.left(at(2))
	p.cameBack(at(100))
	expectDue(t, p, 108, true)
	p.left(at(101))
	p.cameBack(at(103))
	expectDue(t, p, 110, true)
}

func TestWhatIsAskedWhileNobodyReadsCountsFromThenOn(t *testing.T) {
	p := newPulse()
	p.left(at(0))
	p.doubted(at(95), at(100))
	p.cameBack(at(100))
	expectDue(t, p, 105, true)
}

func TestAHeartbeatThatMayLieReadyIsNotLate(t *testing.T) {
	p := newPulse()
	p.left(at(0))
	p.cameBack(at(100))
	expectDue(t, p, 105, false)
}

func TestWithoutHeartbeatsSilenceMeansNothing(t *testing.T) {
	p := &pulse{patience: 10 * time.Second}
	p.heard(at(0))
	if !p.due().IsZero() {
		t.Fatalf("due after %v", p.due().Sub(start))
	}
}
