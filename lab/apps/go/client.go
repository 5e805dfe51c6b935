package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// One line of stdin.
type command struct {
	Op            string `json:"op"`
	Call          string `json:"call"`
	Method        string `json:"method"`
	DeadlineMs    int64  `json:"deadline_ms"`
	CancelAfterMs int64  `json:"cancel_after_ms"`
	Send          int64  `json:"send"`
	SendRate      int64  `json:"send_rate"`
	ReadMost      int    `json:"read_most"`
	arguments
}

type client struct {
	conn  *grpc.ClientConn
	mutex sync.Mutex
	open  map[string]context.CancelFunc
}

func runClient(target string, interval, timeout time.Duration, idle bool, window int32) error {
	if path, unix := strings.CutPrefix(target, "unix:"); unix {
		target = "unix://" + path
	} else {
		target = "passthrough:///" + target
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})),
		grpc.WithDisableServiceConfig(),
	}
	if interval > 0 {
		options = append(options, grpc.WithKeepaliveParams(
			keepalive.ClientParameters{Time: interval, Timeout: timeout, PermitWithoutStream: idle}))
	}
	if window > 0 {
		options = append(options, grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return err
	}
	c := &client{conn: conn, open: map[string]context.CancelFunc{}}
	emit(event{"event": "ready"})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var cmd command
		if err := json.Unmarshal(lines.Bytes(), &cmd); err != nil {
			return fmt.Errorf("command %q: %w", lines.Text(), err)
		}
		switch cmd.Op {
		case "call":
			c.start(cmd)
		case "cancel":
			c.cancel(cmd.Call)
		case "state":
			emit(event{"event": "state", "state": conn.GetState().String()})
		case "quit":
			return conn.Close()
		default:
			return fmt.Errorf("no such op: %q", cmd.Op)
		}
	}
	return conn.Close()
}

func (c *client) start(cmd command) {
	args, err := json.Marshal(cmd.arguments)
	check(err)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "lab-call", cmd.Call, "lab-args", string(args))
	ctx, cancel := context.WithCancel(ctx)
	c.mutex.Lock()
	c.open[cmd.Call] = cancel
	c.mutex.Unlock()
	emit(event{"event": "start", "call": cmd.Call, "method": cmd.Method})
	if cmd.DeadlineMs > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(cmd.DeadlineMs)*time.Millisecond)
	}
	if cmd.CancelAfterMs > 0 {
		time.AfterFunc(time.Duration(cmd.CancelAfterMs)*time.Millisecond, func() { c.cancel(cmd.Call) })
	}
	go func() {
		defer cancel()
		ledger := newLedger()
		end := event{"event": "end", "call": cmd.Call}
		err := c.run(ctx, cmd, ledger, end)
		end["status"] = word(status.Code(err))
		end["message"] = ""
		if err != nil {
			end["message"] = status.Convert(err).Message()
		}
		ledger.emit(end)
		c.cancel(cmd.Call)
	}()
}

func (c *client) cancel(call string) {
	c.mutex.Lock()
	cancel := c.open[call]
	delete(c.open, call)
	c.mutex.Unlock()
	if cancel != nil {
		cancel()
	}
}

func (c *client) run(ctx context.Context, cmd command, l ledger, end event) error {
	switch cmd.Method {
	case "echo":
		request := make([]byte, cmd.Bytes)
		newSource(cmd.Seed).fill(request)
		l.sent.add(request)
		var response []byte
		if err := c.conn.Invoke(ctx, "/lab.Lab/Echo", &request, &response); err != nil {
			return err
		}
		l.received.add(response)
		return nil
	case "never":
		var request, response []byte
		return c.conn.Invoke(ctx, "/lab.Lab/Never", &request, &response)
	case "fail":
		var request, response []byte
		return c.conn.Invoke(ctx, "/lab.Lab/Fail", &request, &response)
	case "deadline":
		var request, response []byte
		if err := c.conn.Invoke(ctx, "/lab.Lab/Deadline", &request, &response); err != nil {
			return err
		}
		if ms, err := strconv.ParseFloat(string(response), 64); err == nil {
			end["left_ms"] = ms
		}
		return nil
	case "ticks":
		return c.ticks(ctx, cmd)
	case "check":
		return c.check(ctx, cmd, l)
	}
	return status.Error(codes.Unimplemented, "no such method: "+cmd.Method)
}

func (c *client) ticks(ctx context.Context, cmd command) error {
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/lab.Lab/Ticks")
	if err != nil {
		return err
	}
	var request []byte
	if err := stream.SendMsg(&request); err != nil && err != io.EOF {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for n := 1; ; n++ {
		var message []byte
		if err := stream.RecvMsg(&message); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		emit(event{"event": "message", "call": cmd.Call, "n": n})
		if n == cmd.ReadMost {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (c *client) check(ctx context.Context, cmd command, l ledger) error {
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/lab.Lab/Check")
	if err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	go l.watch(cmd.Call, done)
	go func() {
		send := func(bytes []byte) error { return stream.SendMsg(&bytes) }
		// An error here is what RecvMsg below says too, with its status.
		if pour(newSource(cmd.Seed), l.sent, cmd.Send, max(cmd.Chunk, 1), cmd.SendRate, send, ctx.Done()) == nil {
			_ = stream.CloseSend()
		}
	}()
	for {
		var bytes []byte
		if err := stream.RecvMsg(&bytes); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		l.received.add(bytes)
	}
}

// The code's name as the specification writes it.
func word(code codes.Code) string {
	names := []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}
	if int(code) < len(names) {
		return names[code]
	}
	return code.String()
}
