# Kafka: a broker with log directories on a mount, a tmpfs and a disk. scripts/engines.sh sources it.
# shellcheck shell=bash

kafka_records() {
    java -Xmx400m -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "$kafka/classes:$kafka_classes" \
        Records "$kafka_server" "$@" 2>"$kafka/records.log"
}

kafka_start() {
    java -Xmx500m -Dorg.slf4j.simpleLogger.defaultLogLevel=info -cp "$kafka_classes" kafka.Kafka "$kafka/server.properties" \
        >"$kafka/server.log" 2>&1 &
    broker=$!
    children=("$broker")
    until_true 60 grep 'Kafka Server started' "$kafka/server.log" || fail "Kafka does not start: $(grep -E 'ERROR|FATAL' "$kafka/server.log" | tail -n 5)"
}

kafka() {
    local kafka=$scratch/kafka-server kafka_classes kafka_server places broker controller said confirmed place rates
    mkdir -p "$kafka/classes"
    kafka_classes=$(maven_classes kafka)
    javac -cp "$kafka_classes" -d "$kafka/classes" scripts/engines/kafka/*.java
    three_places kafka 1G
    kafka_server=127.0.0.1:$(free_port)
    controller=127.0.0.1:$(free_port)
    cat >"$kafka/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@$controller
listeners=PLAINTEXT://$kafka_server,CONTROLLER://$controller
advertised.listeners=PLAINTEXT://$kafka_server
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=${places[0]}/logs,${places[1]}/logs,${places[2]}/logs
metadata.log.dir=$kafka/metadata
log.segment.bytes=33554432
PROPERTIES
    java -Xmx300m -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "$kafka_classes" kafka.tools.StorageTool format -t AAAAAAAAQACAAAAAAAAAAQ \
        -c "$kafka/server.properties" >"$kafka/format.log" 2>&1 || fail "Kafka: $(tail -n 3 "$kafka/format.log")"
    kafka_start
    for place in "${places[@]}"; do
        kafka_records make "$(basename "$place")" "$place/logs" || fail "Kafka: $(tail -n 5 "$kafka/records.log")"
        until_true 10 test -d "$place/logs/$(basename "$place")-0" || fail "Kafka made the topic elsewhere than in $place"
    done
    rates=$(kafka_records rates "$rounds" 40000 kafka kafka-tmpfs kafka-disk) || fail "Kafka: $(tail -n 5 "$kafka/records.log")"
    confirmed=$((40000 * (rounds + 1)))

    # Killed: all that was confirmed is there.
    kill_hard "$broker"
    kafka_start
    kafka_records check kafka "$confirmed" || fail "Kafka after kill -9: $(tail -n 5 "$kafka/records.log")"

    # Full: the directory goes offline, and the broker goes on with the others.
    head -c 2G /dev/zero >"${places[0]}/filler" 2>/dev/null && fail "the pool takes more than its size"
    said=$(kafka_records put kafka "$confirmed" 100000) || fail "Kafka: $(tail -n 5 "$kafka/records.log")"
    [ "${said#* }" != all ] || fail "Kafka puts 100 MB into a full pool"
    [ "$(kafka_records put kafka-disk "$confirmed" 1000)" = '1000 all' ] || fail "Kafka does not go on with its other directories"
    rm "${places[0]}/filler"
    confirmed=$((confirmed + ${said% *}))
    kill_hard "$broker"
    kafka_start
    kafka_records check kafka "$confirmed" || fail "Kafka after a full pool: $(tail -n 5 "$kafka/records.log")"
    echo "Kafka: ok: $confirmed records byte by byte after kill -9 and a full pool (${said#* }; its other directories go on)"
    ratios "Kafka put, acks=all, MB/s" kafka kafka-tmpfs kafka-disk 2 <<<"$rates"
    ratios "Kafka read, MB/s" kafka kafka-tmpfs kafka-disk 3 <<<"$rates"
    end_places
}
