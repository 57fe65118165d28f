/** A minimal protobuf reader and writer, for the fields that the trainer needs; their numbers are those of onnx.proto. */
import { StepError } from "./errors.js";

const ENDS_EARLY = "the bytes end too early";

/** A message, as the list of its fields. */
export class Message {
  /** @param what Name of the message, for errors. */
  constructor(bytes, what) {
    this.what = what;
    this.fields = [];
    const reader = new Reader(bytesOf(bytes, what), what);
    while (!reader.done) {
      const start = reader.at;
      const tag = reader.varint();
      const value = reader.value(Number(tag & 7n));
      this.fields.push({ number: Number(tag >> 3n), value, whole: reader.bytes.subarray(start, reader.at) });
    }
  }

  of(number) {
    return this.fields.filter((one) => one.number === number);
  }

  messages(number, what) {
    return this.of(number).map(({ value }) => new Message(value, what));
  }

  texts(number) {
    return this.of(number).map(({ value }) => {
      try {
        return new TextDecoder("utf-8", { fatal: true }).decode(bytesOf(value, this.what));
      } catch (error) {
        throw error instanceof TypeError ? damaged(this.what, "a text is no UTF-8") : error;
      }
    });
  }

  text(number) {
    return this.texts(number).at(-1) ?? "";
  }

  /** Signed 64-bit integers, packed or not. */
  integers(number) {
    return this.of(number)
      .flatMap(({ value }) => (typeof value === "bigint" ? value : [...packed(value, this.what)]))
      .map((value) => BigInt.asIntN(64, value));
  }

  integer(number) {
    return this.integers(number).at(-1) ?? 0n;
  }
}

class Reader {
  constructor(bytes, what) {
    Object.assign(this, { bytes, what, at: 0 });
  }

  get done() {
    return this.at === this.bytes.length;
  }

  varint() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (this.done) throw damaged(this.what, ENDS_EARLY);
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw damaged(this.what, "a number has more than 10 bytes");
  }

  value(wireType) {
    if (wireType === 0) return this.varint();
    if (wireType === 1) return this.take(8);
    if (wireType === 2) return this.take(Number(this.varint()));
    if (wireType === 5) return this.take(4);
    throw damaged(this.what, `no field has the wire type ${wireType}`);
  }

  take(count) {
    if (count > this.bytes.length - this.at) throw damaged(this.what, ENDS_EARLY);
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }
}

function* packed(bytes, what) {
  const reader = new Reader(bytes, what);
  while (!reader.done) yield reader.varint();
}

/** The bytes of a field. */
export function bytesOf(value, what) {
  if (typeof value === "bigint") throw damaged(what, "a number stands where bytes are expected");
  return value;
}

function damaged(what, why) {
  return new StepError(`the bytes are no ONNX model, or damaged: in ${what}, ${why}`);
}

/** A length-delimited field. */
export function field(number, bytes) {
  return joined([varint((number << 3) | 2), varint(bytes.length), bytes]);
}

/** A field of an integer from 0 to 2**53 - 1. */
export function integerField(number, value) {
  return joined([varint(number << 3), varint(value)]);
}

function varint(value) {
  const bytes = [];
  for (; value >= 0x80; value = Math.floor(value / 0x80)) bytes.push((value % 0x80) | 0x80);
  return Uint8Array.of(...bytes, value);
}

/** The chunks one after the other. */
export function joined(chunks) {
  const result = new Uint8Array(chunks.reduce((size, chunk) => size + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    result.set(chunk, at);
    at += chunk.length;
  }
  return result;
}
