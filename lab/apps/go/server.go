package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// What the client asks of a stream, in the metadata `lab-args`.
type arguments struct {
	EveryMs     int64  `json:"every_ms"`
	Bytes       int64  `json:"bytes"`
	Seed        uint32 `json:"seed"`
	Receive     int64  `json:"receive"`
	Chunk       int64  `json:"chunk"`
	ReceiveRate int64  `json:"receive_rate"`
}

func serve(listen string, permit bool, streams uint32, age, grace time.Duration) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	options := []grpc.ServerOption{grpc.ForceServerCodec(rawCodec{})}
	if permit {
		policy := keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}
		options = append(options, grpc.KeepaliveEnforcementPolicy(policy))
	}
	if streams > 0 {
		options = append(options, grpc.MaxConcurrentStreams(streams))
	}
	if age > 0 {
		limits := keepalive.ServerParameters{MaxConnectionAge: age, MaxConnectionAgeGrace: grace}
		options = append(options, grpc.KeepaliveParams(limits))
	}
	server := grpc.NewServer(options...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "lab.Lab",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Echo", Handler: unary("echo", echo)},
			{MethodName: "Never", Handler: unary("never", never)},
			{MethodName: "Deadline", Handler: unary("deadline", deadline)},
			{MethodName: "Fail", Handler: unary("fail", fail)},
		},
		Streams: []grpc.StreamDesc{
			{StreamName: "Ticks", Handler: stream("ticks", ticks), ServerStreams: true},
			{StreamName: "Check", Handler: stream("check", checkStream), ServerStreams: true, ClientStreams: true},
		},
	}, struct{}{})
	emit(event{"event": "listening", "address": listener.Addr().String()})
	return server.Serve(listener)
}

type visit struct {
	ctx  context.Context
	call string
	args arguments
	ledger
}

// Says that a handler began, runs it, and says why it ended.
func visited(ctx context.Context, method string, run func(visit) error) error {
	v := visit{ctx: ctx, ledger: newLedger()}
	if values := metadata.ValueFromIncomingContext(ctx, "lab-call"); len(values) > 0 {
		v.call = values[0]
	}
	if values := metadata.ValueFromIncomingContext(ctx, "lab-args"); len(values) > 0 {
		if err := json.Unmarshal([]byte(values[0]), &v.args); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
	}
	emit(event{"event": "handler", "call": v.call, "method": method, "left_ms": left(ctx)})
	err := run(v)
	reason := "returned"
	if err != nil && err != errFailed {
		// An error of the transport comes with the end of the context, at times a moment before it.
		<-ctx.Done()
		reason = "canceled"
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			reason = "deadline"
		}
	}
	v.ledger.emit(event{"event": "handler_end", "call": v.call, "method": method, "reason": reason})
	return err
}

// The time that the deadline leaves, in milliseconds; null without one.
func left(ctx context.Context) any {
	at, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	return float64(time.Until(at).Microseconds()) / 1000
}

func unary(method string, run func(visit, []byte) ([]byte, error)) grpc.MethodHandler {
	return func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request, response []byte
		if err := decode(&request); err != nil {
			return nil, err
		}
		err := visited(ctx, method, func(v visit) (err error) {
			response, err = run(v, request)
			return err
		})
		return &response, err
	}
}

func echo(_ visit, request []byte) ([]byte, error) {
	return request, nil
}

func never(v visit, _ []byte) ([]byte, error) {
	<-v.ctx.Done()
	return nil, v.ctx.Err()
}

var errFailed = status.Error(codes.Unavailable, "as asked")

func fail(visit, []byte) ([]byte, error) {
	return nil, errFailed
}

func deadline(v visit, _ []byte) ([]byte, error) {
	if ms, ok := left(v.ctx).(float64); ok {
		return []byte(strconv.FormatFloat(ms, 'f', 3, 64)), nil
	}
	return []byte("none"), nil
}

func stream(method string, run func(visit, grpc.ServerStream) error) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		return visited(stream.Context(), method, func(v visit) error { return run(v, stream) })
	}
}

// One message at once, then one each `every_ms`, or none for ever.
func ticks(v visit, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	message := make([]byte, max(v.args.Bytes, 1))
	var next <-chan time.Time
	if v.args.EveryMs > 0 {
		ticker := time.NewTicker(time.Duration(v.args.EveryMs) * time.Millisecond)
		defer ticker.Stop()
		next = ticker.C
	}
	for {
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
		select {
		case <-v.ctx.Done():
			return v.ctx.Err()
		case <-next:
		}
	}
}

// Both directions at once: counts and hashes what comes until it ends, and sends its own stream.
func checkStream(v visit, stream grpc.ServerStream) error {
	done := make(chan struct{})
	defer close(done)
	go v.watch(v.call, done)
	poured := make(chan error, 1)
	go func() {
		send := func(bytes []byte) error { return stream.SendMsg(&bytes) }
		poured <- pour(newSource(v.args.Seed+1), v.sent, v.args.Receive, max(v.args.Chunk, 1), v.args.ReceiveRate, send, v.ctx.Done())
	}()
	for {
		var bytes []byte
		err := stream.RecvMsg(&bytes)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		v.received.add(bytes)
	}
	if err := <-poured; err != nil {
		return err
	}
	return v.ctx.Err()
}
