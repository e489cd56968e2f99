package grpclimit

import (
	"context"
	"net/http"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
)

// Unary is an interceptor for unary calls. The handler runs if all of asks are granted, in one
// call of the limiter. Otherwise nothing is taken, and the client gets the status of
// [rpclimit.Guard.Answer]. The tokens are taken for good when the handler begins, also if it fails
// or panics. It may give back the result of [rpclimit.FromContext].
//
// No ask may reserve, with OrReserve or Within: the handler would run ahead of its tokens.
func Unary(guard *rpclimit.Guard, asks ...rpclimit.Ask) grpc.UnaryServerInterceptor {
	asks = slices.Clone(asks)
	return func(
		ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (any, error) {
		ctx, err := take(ctx, guard, info.FullMethod, req, asks)
		if err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// Stream is [Unary] for streams of each kind. It takes once for each stream, before the handler
// runs and before the first message is read, so [rpclimit.Call.Message] is nil. To limit messages,
// call the limiter in the handler, and [Pass].
func Stream(guard *rpclimit.Guard, asks ...rpclimit.Ask) grpc.StreamServerInterceptor {
	asks = slices.Clone(asks)
	return func(
		srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
	) error {
		ctx, err := take(stream.Context(), guard, info.FullMethod, nil, asks)
		if err != nil {
			return err
		}
		return handler(srv, &taken{stream, ctx})
	}
}

// taken is a stream whose context has the result.
type taken struct {
	grpc.ServerStream
	ctx context.Context
}

func (t *taken) Context() context.Context { return t.ctx }

func take(
	ctx context.Context, guard *rpclimit.Guard, procedure string, message any, asks []rpclimit.Ask,
) (context.Context, error) {
	call := &rpclimit.Call{
		Procedure: procedure,
		Address:   address(ctx),
		Header: func(name string) []string {
			return metadata.ValueFromIncomingContext(ctx, name)
		},
		Message: message,
	}
	ctx, res, err := guard.Take(ctx, call, asks)
	return ctx, pass(ctx, guard, procedure, res, err)
}

// address is where the call comes from, or nothing that anybody would take for an address.
func address(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return "unknown"
}

// Pass is for handlers that call the limiter themselves, for example in a transaction. It returns
// nil if the call may continue, and otherwise the error to return: what the interceptors would
// return. Call it after COMMIT, with what [ratelimit.Limiter.InTx] has returned, whose denial may
// be err. An err that has a gRPC status is returned as it is.
//
// It also sets the guard's Fields, unless the header has been sent. ctx is that of the handler.
func Pass(ctx context.Context, guard *rpclimit.Guard, res ratelimit.Result, err error) error {
	procedure, _ := grpc.Method(ctx)
	return pass(ctx, guard, procedure, res, err)
}

func pass(
	ctx context.Context, guard *rpclimit.Guard, procedure string, res ratelimit.Result, err error,
) error {
	if err != nil {
		if _, ok := status.FromError(err); ok {
			return err
		}
	}
	header, refused := guard.Answer(ctx, procedure, res, err)
	// it fails if the header has been sent: then nobody is told
	_ = grpc.SetHeader(ctx, lower(header))
	if refused != nil {
		return status.ErrorProto(refused)
	}
	return nil
}

func lower(header http.Header) metadata.MD {
	md := make(metadata.MD, len(header))
	for name, values := range header {
		md.Append(name, values...) // which makes the name lower case
	}
	return md
}
