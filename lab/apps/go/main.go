// The lab's gRPC application in Go: a server and a client in one program. The command line and the lines that it
// prints are those of ../README.md, the same in every language.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	switch os.Args[1] {
	case "server":
		flags := flag.NewFlagSet("server", flag.ExitOnError)
		listen := flags.String("listen", "127.0.0.1:0", "address to listen on")
		permit := flags.Bool("permit-keepalive", false, "allow a ping each second, without streams too")
		streams := flags.Uint("max-streams", 0, "calls at once on a connection; 0 is the library's default")
		age := flags.Int64("max-age-ms", 0, "age at which a connection is told to go; 0 is none")
		grace := flags.Int64("max-age-grace-ms", 0, "how long its calls may run on then; 0 is for ever")
		parse(flags)
		check(serve(*listen, *permit, uint32(*streams), time.Duration(*age)*time.Millisecond, time.Duration(*grace)*time.Millisecond))
	case "client":
		flags := flag.NewFlagSet("client", flag.ExitOnError)
		target := flags.String("target", "", "HOST:PORT or unix:PATH")
		keepalive := flags.Int64("keepalive-ms", 0, "client keepalive interval; 0 is none")
		timeout := flags.Int64("keepalive-timeout-ms", 20000, "client keepalive timeout")
		idle := flags.Bool("keepalive-idle", false, "ping without streams too")
		window := flags.Int("window", 0, "a flow-control window that stays as it is; 0 is the library's default")
		// The library's default is a good one already.
		flags.Bool("own-authority", false, "the library's default :authority on a unix socket")
		parse(flags)
		interval, wait := time.Duration(*keepalive)*time.Millisecond, time.Duration(*timeout)*time.Millisecond
		check(runClient(*target, interval, wait, *idle, int32(*window)))
	case "version":
		emit(event{"event": "version", "impl": "go", "library": "grpc-go " + grpc.Version, "runtime": goVersion()})
	default:
		usage()
	}
}

func parse(flags *flag.FlagSet) {
	// ExitOnError: an unknown flag ends the program with status 2.
	_ = flags.Parse(os.Args[2:])
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unexpected argument %q\n", flags.Arg(0))
		os.Exit(2)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: server|client|version [flags], see lab/apps/README.md")
	os.Exit(2)
}
