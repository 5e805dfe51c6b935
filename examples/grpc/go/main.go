// A Go client on a mapping: go run . TARGET SECONDS
//
// TARGET is unix:///run/user/1000/hopline/ledger.sock, or passthrough:///127.0.0.1:7901 for a TCP mapping.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
)

// For every method: UNAVAILABLE is tried again. Methods that must not run twice don't belong here.
const serviceConfig = `{"methodConfig": [{
	"name": [{}],
	"retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "2s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`

func main() {
	// One channel for the whole process, without keepalive.
	conn, err := grpc.NewClient(os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(serviceConfig))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	seconds, _ := strconv.Atoi(os.Args[2])
	client := health.NewHealthClient(conn)
	good, failed := 0, 0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		if err := call(client); err == nil {
			good++
		} else {
			failed++
			fmt.Fprintln(os.Stderr, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Printf("%d good, %d failed\n", good, failed)
}

func call(client health.HealthClient) error {
	// The deadline covers all tries.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := client.Check(ctx, &health.HealthCheckRequest{})
	return err
}
