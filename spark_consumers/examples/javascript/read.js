// Prints the changes on a topic of the relay, with kafkajs and a Confluent-compatible schema registry.
//
//   npm ci --ignore-scripts && node read.js BROKERS REGISTRY_URL TOPIC [COUNT]
//
// The config has `schema_registry:`. With COUNT it ends after so many changes, else with Ctrl-C.

import avro from "avsc";
import kafkajs from "kafkajs";
import lz4 from "lz4js";
import { SchemaRegistry, SchemaType } from "@kafkajs/confluent-schema-registry";

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = kafkajs;
const [brokers, registryUrl, topic, count] = process.argv.slice(2);

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

const registry = new SchemaRegistry(
  { host: registryUrl },
  {
    [SchemaType.AVRO]: {
      typeHook: (schema) => ((schema.type ?? schema) === "long" ? long : undefined),
      logicalTypes: { decimal: Decimal },
    },
  },
);
const kafka = new Kafka({ clientId: "example", brokers: brokers.split(","), logLevel: logLevel.ERROR });
const consumer = kafka.consumer({ groupId: `${topic}.javascript` }); // read_committed, unless told otherwise

const shown = (_, value) =>
  typeof value === "bigint" ? value.toString() : value?.type === "Buffer" ? Buffer.from(value.data).toString("base64") : value;

let printed = 0;
await consumer.connect();
await consumer.subscribe({ topic, fromBeginning: true });
await consumer.run({
  eachMessage: async ({ message }) => {
    if (message.value === null || printed === Number(count)) return; // null: for log compaction, with `tombstones: true`
    const change = await registry.decode(message.value); // looks the schema up by the id in front of the value
    console.log(JSON.stringify([change.operation, change.key, change.new], shown));
    if (++printed === Number(count)) setTimeout(() => consumer.disconnect().then(() => process.exit(0)));
  },
});
