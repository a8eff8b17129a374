// Prints the changes on a topic of the relay, with kafkajs and avsc, and none of our code.
//
//   npm ci --ignore-scripts && node read.js BROKERS TOPIC SCHEMAS GROUP [REGISTRY_URL [COUNT]]
//
// SCHEMAS is the topic `<name>.schemas`; REGISTRY_URL is the `url` of `schema_registry:`, if the config has one. TOPIC
// may be in Debezium's envelope. The program ends once it has printed COUNT changes, or with Ctrl-C.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import avro from "avsc";
import kafkajs from "kafkajs";
import lz4 from "lz4js";
import { SchemaRegistry, SchemaType } from "@kafkajs/confluent-schema-registry";

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = kafkajs;
const [brokers, topic, schemasTopic, group, registryUrl, count] = process.argv.slice(2);
const PATIENCE = 20_000; // ms for a schema, which is on its topic before the first change; kafkajs' session is longer

// The relay compresses with lz4, which kafkajs leaves to its users.
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async ({ buffer }) => Buffer.from(lz4.compress(buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});

// A BIGINT has more digits than a number of JavaScript.
const long = avro.types.LongType.__with({
  fromBuffer: (buffer) => buffer.readBigInt64LE(),
  toBuffer: (number) => { const buffer = Buffer.alloc(8); buffer.writeBigInt64LE(number); return buffer; },
  fromJSON: BigInt,
  toJSON: String,
  isValid: (number) => typeof number === "bigint",
  compare: (a, b) => (a < b ? -1 : a > b ? 1 : 0),
});

// And a DECIMAL is digits and a place of the point: as text it stays exact.
class Decimal extends avro.types.LogicalType {
  constructor(schema, options) { super(schema, options); this.scale = schema.scale ?? 0; }
  _fromValue(bytes) {
    const number = BigInt.asIntN(bytes.length * 8, BigInt(`0x${Buffer.from(bytes).toString("hex") || "0"}`));
    const digits = String(number < 0n ? -number : number).padStart(this.scale + 1, "0");
    const point = digits.length - this.scale;
    return (number < 0n ? "-" : "") + digits.slice(0, point) + (this.scale ? `.${digits.slice(point)}` : "");
  }
  _toValue() { throw new Error("this program only reads"); }
}

const options = {
  typeHook: (schema) => ((schema.type ?? schema) === "long" ? long : undefined),
  logicalTypes: { decimal: Decimal },
};
const registry = registryUrl && new SchemaRegistry({ host: registryUrl }, { [SchemaType.AVRO]: options });
const kafka = new Kafka({ clientId: "example", brokers: brokers.split(","), logLevel: logLevel.ERROR });

// kafkajs reads nothing without a group: this one is of this process, which reads all schemas from the beginning.
const types = new Map();
const schemas = kafka.consumer({ groupId: `${group}.${randomUUID()}` });
await schemas.connect();
await schemas.subscribe({ topic: schemasTopic, fromBeginning: true });
await schemas.run({
  autoCommit: false,
  eachMessage: async ({ message: { key, value } }) => {
    types.set(`c301${key}`, avro.Type.forSchema(JSON.parse(value), { ...options }));
  },
});

// The first bytes name the schema. Without it, Avro would return a row of wrong values and no error.
async function decode(value) {
  if (value[0] === 0 && registry) return registry.decode(value); // the next 4 bytes are an id
  const header = value.toString("hex", 0, 10);
  for (const deadline = Date.now() + PATIENCE; !types.has(header); await sleep(100)) {
    if (!header.startsWith("c301") || Date.now() > deadline) {
      throw new Error(`no schema of a value that begins with ${header}`);
    }
  }
  return types.get(header).fromBuffer(value.subarray(10));
}

const shown = (_, value) =>
  typeof value === "bigint" ? value.toString() : value?.type === "Buffer" ? Buffer.from(value.data).toString("base64") : value;

async function print({ key, value }) {
  const change = await decode(value);
  const printed = "op" in change // Debezium's envelope, whose key is in the key of the record; a truncation has none
    ? [change.op, key && (await decode(key)), change.after]
    : [change.operation, change.key, change.new];
  console.log(JSON.stringify(printed, shown));
}

let printed = 0;
const consumer = kafka.consumer({ groupId: group }); // read_committed, unless told otherwise
await consumer.connect();
await consumer.subscribe({ topic, fromBeginning: true });
await consumer.run({
  eachMessage: async ({ message }) => {
    if (message.value === null) return; // for log compaction, and for Debezium's sinks
    await print(message).catch((error) => {
      console.error(error.message);
      process.exit(1);
    });
    if (++printed === Number(count)) setTimeout(() => consumer.disconnect().then(() => process.exit(0)));
  },
});
