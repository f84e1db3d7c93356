// Workers that compete for one lock: worker PEER PORT WORKERS SECONDS (protocol: ../run.py).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	redislock "github.com/redislock/redislock/clients/go"
)

const ttl = 30 * time.Second

// locking returns a function that runs the work under the lock.
func locking(peer string, client *redis.Client) func(work func()) error {
	ctx := context.Background()
	switch peer {
	case "bsm/redislock":
		locker := bsm.New(client)
		options := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
		return func(work func()) error {
			patient, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			lock, err := locker.Obtain(patient, "bench", ttl, options)
			if err != nil {
				return err
			}
			work()
			return lock.Release(ctx)
		}
	case "redsync":
		pool := redsync.New(goredis.NewPool(client))
		return func(work func()) error {
			mutex := pool.NewMutex("bench", redsync.WithExpiry(ttl), redsync.WithTries(10_000))
			if err := mutex.Lock(); err != nil {
				return err
			}
			work()
			_, err := mutex.Unlock()
			return err
		}
	}
	return func(work func()) error {
		return redislock.Do(ctx, client, "bench", redislock.Options{TTL: ttl},
			func(context.Context, *redislock.Held) error { work(); return nil })
	}
}

type tally struct {
	Grants    []int   `json:"grants"`
	Waits     []int64 `json:"waits"`
	Handovers int     `json:"handovers"`
}

func measure(withIt func(work func()) error, workers int, length time.Duration) tally {
	result := tally{Grants: make([]int, workers)}
	end, last := time.Now().Add(length), -1
	var mutex sync.Mutex
	var team sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		team.Add(1)
		go func() {
			defer team.Done()
			for asked := time.Now(); asked.Before(end); asked = time.Now() {
				err := withIt(func() {
					mutex.Lock()
					defer mutex.Unlock()
					result.Waits = append(result.Waits, time.Since(asked).Microseconds())
					if time.Now().After(end) {
						return
					}
					result.Grants[worker]++
					if last != worker {
						result.Handovers++
					}
					last = worker
				})
				check(err)
			}
		}()
	}
	team.Wait()
	return result
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func main() {
	if len(os.Args) != 5 {
		check(errors.New("usage: worker PEER PORT WORKERS SECONDS"))
	}
	workers, seconds := number(os.Args[3]), number(os.Args[4])
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[2]})
	withIt := locking(os.Args[1], client)
	measure(withIt, workers, time.Second)
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	check(json.NewEncoder(os.Stdout).Encode(measure(withIt, workers, time.Duration(seconds)*time.Second)))
}
