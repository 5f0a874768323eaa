import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Records in Kafka whose values their offsets decide.
 *
 * <pre>
 * Records SERVER make TOPIC DIRECTORY   makes a topic of one partition in this log directory of the broker
 * Records SERVER put TOPIC FIRST COUNT  puts records; prints how many the broker confirmed, and why not more
 * Records SERVER check TOPIC COUNT      reads COUNT records, and fails unless each value is the one that was put
 * Records SERVER rates ROUNDS COUNT TOPIC...   prints MB/s of putting and of reading: a line for each round and topic
 * </pre>
 */
public class Records {
    private static final int VALUE_BYTES = 1000;
    private static Properties settings = new Properties();

    public static void main(String[] arguments) throws Exception {
        settings.put("bootstrap.servers", arguments[0]);
        String topic = arguments[2];
        switch (arguments[1]) {
            case "make":
                make(topic, arguments[3]);
                break;
            case "put":
                put(topic, Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]));
                break;
            case "check":
                check(topic, 0, Integer.parseInt(arguments[3]));
                break;
            default:
                rates(Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]), Arrays.copyOfRange(arguments, 4, arguments.length));
        }
    }

    private static byte[] value(String topic, long offset) {
        byte[] value = new byte[VALUE_BYTES];
        new Random(topic.hashCode() * 1_000_003L + offset).nextBytes(value);
        return value;
    }

    private static void make(String topic, String directory) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            // The broker makes a partition where it was told to, once it is there.
            try {
                admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica(topic, 0, 1), directory)).all().get();
            } catch (ExecutionException notYet) {
                // It is told before the topic is there, and answers that.
            }
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        }
    }

    private static void put(String topic, int first, int count) throws Exception {
        Properties producing = new Properties();
        producing.putAll(settings);
        producing.put("acks", "all");
        producing.put("delivery.timeout.ms", 15000);
        producing.put("request.timeout.ms", 5000);
        producing.put("max.block.ms", 15000);
        int confirmed = 0;
        String reason = "all";
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(producing, new ByteArraySerializer(), new ByteArraySerializer())) {
            @SuppressWarnings("unchecked")
            Future<RecordMetadata>[] answers = new Future[count];
            for (int index = 0; index < count; index++) {
                answers[index] = producer.send(new ProducerRecord<>(topic, 0, null, value(topic, first + index)));
            }
            try {
                for (Future<RecordMetadata> answer : answers) {
                    answer.get();
                    confirmed++;
                }
            } catch (ExecutionException failure) {
                reason = failure.getCause().getClass().getSimpleName();
            }
        }
        System.out.println(confirmed + " " + reason);
    }

    private static void check(String topic, long first, int count) {
        Properties consuming = new Properties();
        consuming.putAll(settings);
        consuming.put("check.crcs", "true");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consuming, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(Collections.singletonList(partition));
            consumer.seek(partition, first);
            long next = first;
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (next < first + count) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (record.offset() != next || !Arrays.equals(record.value(), value(topic, next))) {
                        throw new AssertionError(topic + ": record " + record.offset() + " is not the one of offset " + next);
                    }
                    next++;
                }
                if (System.nanoTime() > deadline) {
                    throw new AssertionError(topic + ": " + (next - first) + " of " + count + " records");
                }
            }
        }
    }

    private static void rates(int rounds, int count, String[] topics) throws Exception {
        int first = 0;
        // Round 0 warms the programs up, and is not told.
        for (int round = 0; round <= rounds; round++) {
            for (String topic : topics) {
                long start = System.nanoTime();
                put(topic, first, count);
                long written = System.nanoTime();
                check(topic, first, count);
                long read = System.nanoTime();
                if (round > 0) {
                    System.out.printf("%s %.1f %.1f%n", topic, rate(count, written - start), rate(count, read - written));
                }
            }
            first += count;
        }
    }

    private static double rate(int count, long nanoseconds) {
        return count * (double) VALUE_BYTES * 1e3 / nanoseconds;
    }
}
