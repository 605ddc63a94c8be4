// Apache's Go client as the tests use it: one producer or one consumer, told by its arguments.
//
//	client produce NAME_SERVER TOPIC COUNT TAG,…
//	client consume NAME_SERVER TOPIC EXPRESSION GROUP INSTANCE
//
// A producer sends COUNT messages "key-K:N" in order of their keys and prints each message's place and tag. A consumer
// is an orderly one; it prints each message it gets, and leaves its group when its input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const keys = 10

var output sync.Mutex

type line struct {
	Broker string `json:"broker"`
	Queue  int    `json:"queue"`
	Offset int64  `json:"offset"`
	Tag    string `json:"tag"`
	Body   string `json:"body"`
}

func show(value any) {
	text, err := json.Marshal(value)
	check(err)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func produce(nameServer, topic, count, tags string) {
	number, err := strconv.Atoi(count)
	check(err)
	client, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})),
		producer.WithGroupName("go-producer"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
	check(err)
	check(client.Start())
	names := strings.Split(tags, ",")
	for n := 0; n < number; n++ {
		key := fmt.Sprintf("key-%d", n%keys)
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%s:%d", key, n)))
		tag := names[n%len(names)]
		message.WithTag(tag).WithKeys([]string{key}).WithShardingKey(key)
		sent, err := client.SendSync(context.Background(), message)
		check(err)
		show(line{sent.MessageQueue.BrokerName, sent.MessageQueue.QueueId, sent.QueueOffset, tag, string(message.Body)})
	}
	check(client.Shutdown())
}

func consume(nameServer, topic, expression, group, instance string) {
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance),
		consumer.WithConsumerModel(consumer.Clustering),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(true),
	)
	check(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	check(client.Subscribe(topic, selector, func(
		_ context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		for _, one := range messages {
			show(line{one.Queue.BrokerName, one.Queue.QueueId, one.QueueOffset, one.GetTags(), string(one.Body)})
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(client.Start())
	_, _ = io.Copy(io.Discard, os.Stdin)
	check(client.Shutdown())
}

func main() {
	rlog.SetLogLevel("warn")
	switch {
	case len(os.Args) == 6 && os.Args[1] == "produce":
		produce(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	case len(os.Args) == 7 && os.Args[1] == "consume":
		consume(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6])
	default:
		check(fmt.Errorf("unknown arguments: %v", os.Args[1:]))
	}
}
