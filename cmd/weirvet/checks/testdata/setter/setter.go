package setter

import (
	"time"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

var global ratelimit.Request

func dropped(limit ratelimit.Limit, request ratelimit.Request, take ratelimit.Take, reservation ratelimit.Reservation,
	slot slots.Request, ask httplimit.Ask, call rpclimit.Ask, res ratelimit.Result, in *scheduler.Inserted,
) ratelimit.Request {
	request.Count(5)                      // want `the result of Count is dropped: it is a changed copy, and the Request itself never changes`
	request.CountInt(5)                   // want `the result of CountInt is dropped`
	request.OrReserve()                   // want `the result of OrReserve is dropped`
	request.Within(time.Second).Leave(3)  // want `the result of Leave is dropped`
	(request.OnCredit())                  // want `the result of OnCredit is dropped`
	request.Rule(ratelimit.TokenBucket{}) // want `the result of Rule is dropped`
	global.Count(2)                       // want `the result of Count is dropped`
	limit.For("a")                        // want `the result of For is dropped, and the call has no other effect`
	limit.For("a").Count(2)               // want `the result of Count is dropped`
	slot.Of(2)                            // want `the result of Of is dropped`
	ask.Cost(nil)                         // want `the result of Cost is dropped`
	ask.Rule(nil)                         // want `the result of Rule is dropped`
	ask.Unless(nil)                       // want `the result of Unless is dropped`
	call.Only("/mail.Mail/Send")          // want `the result of Only is dropped: it is a changed copy, and the Ask itself never changes`
	take.MoveUp(3)                        // want `the result of MoveUp is dropped`
	reservation.Again()                   // want `the result of Again is dropped`
	res.Err()                             // want `the error of Err is dropped: it is the denial`
	in.Err()                              // want `the error of Err is dropped: it is the denial`
	for _, r := range []ratelimit.Request{request} {
		r.Count(1) // want `the result of Count is dropped`
	}

	request = request.Count(5)
	_ = request.Count(6)
	_ = take.UnmarshalJSON(nil)
	take.UnmarshalJSON(nil)
	return request.OrReserve()
}
