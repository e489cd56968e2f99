package integration

import (
	"testing"

	"github.com/weir-go/weir/ratelimit"
)

// What was used beyond the reservation is owed, whatever may be reserved, and comes before those
// who wait.
func TestExcessIsADebtThatPutsTheLineOff(t *testing.T) {
	settledEachWay(t, oneASecond, func(s settling) {
		a, b := s.at(0).reserves(8), s.reserves(4)
		s.runs(b, 4)
		s.at(2).settle(true, a, 20)
		s.at(2).has(-14) // 8 may be reserved
		s.runs(b, 16)
		s.at(2).take(1, true, false, -14, 9, 0)
		s.at(9).take(1, true, true, -8, 17, 0)
		s.runs(b, 16)
		s.at(16).settle(true, b, 4)
		s.has(-1)
	})
}

func TestExcessIsADebtThatPutsTheLineOffByWindows(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		a, b, c := s.at(0).reserves(10), s.reserves(5), s.reserves(5)
		s.at(70).settle(true, a, 18)
		s.runs(b, 120)
		s.runs(c, 120)
		s.at(80).settle(true, b, 8)
		s.runs(c, 180)
		s.has(-11)
	})
}

// Who had the tokens at once waits for nobody's excess, and for no pause but while it lasts,
// whatever windows begin in it.
func TestWorkWhoseTokensWereThereIsNotPutOff(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		overdue := func(r ratelimit.Reservation) {
			s.t.Helper()
			state, err := s.v.Value(s.t.Context(), s.r)
			if err != nil {
				s.t.Fatal(err)
			}
			if run, paced := r.Takes[0].RunAt(state); run.After(s.clock.Now()) || paced.After(s.clock.Now()) {
				s.t.Errorf("at %v its work is to run at %v and %v", seconds(s.clock.Now()),
					seconds(run), seconds(paced))
			}
		}
		a, b := s.at(50).reserves(2), s.reserves(3)
		s.at(51).settle(true, a, 20)
		overdue(b)
		s.at(55).pause(10) // a window begins
		s.at(56).runs(b, 65)
		s.at(65)
		overdue(b)
		s.at(240).pause(10) // none does
		c := s.at(241).reserves(1)
		s.runs(c, 250)
		s.at(242).resume()
		overdue(c)
	})
}

// Those who wait come earlier by exactly what is given back of those before them. What was reserved
// and will not be used goes to the next to come.
func TestWhatIsGivenBackBringsTheLineForward(t *testing.T) {
	settledEachWay(t, oneASecond, func(s settling) {
		a, b, c := s.at(0).reserves(8), s.reserves(4), s.reserves(2)
		s.runs(b, 4)
		s.runs(c, 6)
		s.at(1).settle(true, a, 6.5)
		s.runs(b, 2.5)
		s.runs(c, 4.5)
		s.has(-3.5)
		s.at(2).release(b) // it was between, and c keeps its time
		s.runs(c, 4.5)
		s.has(1.5)
		s.at(2).take(1, false, true, 0.5, 0, 0)
		s.at(5).settle(true, c, 0)
		s.has(5.5)
	})
}

// The tokens of a window end with it. Given to those who wait they would come on top of those of
// the window then.
func TestAWindowsTokensSettledLateAreNoGift(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		now, next, after, last := s.at(0).reserves(10), s.reserves(10), s.reserves(10), s.reserves(5)
		s.at(60).settle(true, now, 0) // the row still stands in the window before
		s.runs(next, 60)
		s.runs(after, 120)
		s.runs(last, 180)
		s.at(130).settle(true, next, 0)
		s.runs(after, 120)
		s.runs(last, 180)
		s.at(170).settle(true, after, 4) // in its own: six of the ten are there for the last
		s.runs(last, 120)
		s.at(180).has(10)
		s.take(10, false, true, 0, 0, 0)
		s.settle(true, last, 0)
		s.has(0)
	})
}

// Excess puts off those who wait. Who had the tokens of a window at once has not waited: these have
// ended with their window all the same.
func TestExcessKeepsNoTokensOfAnEndedWindow(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		a, b, c := s.at(0).reserves(3), s.reserves(1), s.reserves(6)
		s.at(70).settle(true, c, 26)
		s.has(-10)
		s.settle(true, a, 0)
		s.release(b)
		s.has(-10)
	})
}

func TestAWindowsTokensSettledInItAreThereAgain(t *testing.T) {
	settledEachWay(t, tenAMinute, func(s settling) {
		a, b := s.at(0).reserves(10), s.reserves(5)
		s.runs(b, 60)
		s.at(59).settle(true, a, 4)
		s.runs(b, 0)
		s.has(1)
		s.take(1, false, true, 0, 0, 0)
		s.at(60).settle(true, b, 0)
		s.has(10)
	})
}

// Nothing flows in during a pause, but what is not used goes back, and what was used beyond is
// owed.
func TestSettlingInAPause(t *testing.T) {
	settledEachWay(t, oneASecond, func(s settling) {
		a, b, c := s.at(0).reserves(8), s.reserves(4), s.reserves(1)
		s.at(2).pause(10)
		s.runs(b, 14)
		s.at(5).settle(true, a, 7)
		s.runs(b, 13)
		s.runs(c, 14)
		s.has(-2)
		s.at(6).settle(true, b, 9)
		s.runs(c, 19)
		s.has(-7)
		s.at(12).has(-7)
		s.at(19).has(0)
	})
	t.Run("Windows", func(t *testing.T) {
		settledEachWay(t, tenAMinute, func(s settling) {
			a, b, c := s.at(50).reserves(10), s.reserves(5), s.reserves(10)
			s.runs(b, 60)
			s.runs(c, 120)
			s.at(55).pause(100) // to 155: two windows begin
			s.runs(b, 180)
			s.runs(c, 240)
			s.at(150).settle(true, a, 1) // time stands still, so that it is in its own window
			s.runs(b, 155+15)
			s.runs(c, 180)
			s.has(-6)
		})
	})
}
