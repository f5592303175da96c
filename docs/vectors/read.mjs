// Print the messages of a queue as JSON, by FORMAT.md alone: node read.mjs DIRECTORY [PREFIX]
// Messages that fit into a page, of pages that are not compressed; nothing may write meanwhile.
import { existsSync, readFileSync } from "node:fs";

const [directory, prefix = "queue"] = process.argv.slice(2);
const TABLE = Uint32Array.from({ length: 256 }, (_, crc) => {
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc;
});
const crc32c = (bytes) => ~bytes.reduce((crc, byte) => TABLE[(crc ^ byte) & 255] ^ (crc >>> 8), -1) >>> 0;
const check = (condition, what) => { if (!condition) throw new Error(what); };

const readMeta = readFileSync(`${directory}/${prefix}-readMeta`);
check(readMeta.toString("latin1", 0, 8) === "pgqread\x1a", "readMeta: magic");
const id = readMeta.subarray(16, 32);
const head = readMeta.readBigUInt64LE(32); // the first page that is retained
let sequence = readMeta.readBigUInt64LE(head % 2n ? 40 : 48); // and its first message
const messages = [];
for (let number = head; ; number++) {
  const path = `${directory}/${prefix}-${String(number).padStart(10, "0")}.page`;
  if (!existsSync(path)) break;
  const page = readFileSync(path);
  check(page.toString("latin1", 0, 8) === "pgqpage\x1a" && id.equals(page.subarray(24, 40)), path);
  if (page.readBigUInt64LE(40) !== sequence) break; // prepared, and not in use yet
  let at = 64, length; // frames follow the header
  while ((length = page.readUInt32LE(at)) >>> 30 < 2 && length !== 0) {
    const end = at + (length & 0x3fffffff);
    const place = Buffer.alloc(20); // timestamp, sequence, length: the end of what is checked
    page.copy(place, 0, at + 8, at + 16);
    place.writeBigUInt64LE(sequence, 8);
    place.writeUInt32LE(length, 16);
    const checksum = crc32c(Buffer.concat([id, page.subarray(at + 16, end), place]));
    check(checksum === page.readUInt32LE(at + 4), `${path}: damaged at ${at}`);
    messages.push({
      sequence: Number(sequence++), timestamp: String(page.readBigInt64LE(at + 8)),
      page: Number(number), position: at, checksum, more_of_batch: length >>> 30 === 1,
      payload: page.toString("base64", at + 16, end),
    });
    at = (end + 7) & ~7;
  }
  check(length >>> 30 !== 3, `${path}: a message of several pages`);
  if (length === 0) break; // nothing was sent after this; else it is the end of the page
}
console.log(JSON.stringify({ queue_id: id.toString("hex"), messages }, null, 1));
