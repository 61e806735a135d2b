/** "epoch.sequence" as text: JavaScript does not keep such large numbers exactly. */
export type Revision = string;
export type Value = string | Uint8Array;
export interface Entry { value: Value; revision: Revision }
export interface Change { key: string; value: Value | undefined; deleted: boolean; revision: Revision }
export interface Done { revision: Revision; durability: "" | "applied" | "journaled" | "replicated" }
export type State = "connecting" | "synced" | "stale" | "closed";
export interface Options { subtree?: string; mount?: string; onState?: (state: State) => void; timeoutMs?: number; token?: string }
export type Row =
  | { set: string; value: Value; ttl?: number; if?: Revision | null }
  | { delete: string; if?: Revision | null };

/** A server, or the gateway, refused an own set; `code` is as in SPEC.md, section 18. */
export class Refused extends Error {
  readonly code: string;
  readonly detail: unknown;
  readonly revisions: Record<string, Revision> | null;
}
/** No server answered in time, or the Clone was closed. A pending set may or may not have taken effect. */
export class Unanswered extends Error {}

export function reaches(a: Revision, b: Revision): boolean;

export class Clone implements Iterable<[string, Value]> {
  constructor(gateways: string | string[], options?: Options);
  static open(gateways: string | string[], options?: Options): Promise<Clone>;
  readonly state: State;
  readonly number: Revision;
  readonly comparedAt: Revision;
  readonly size: number;
  readonly stats: Record<string, number>;
  get(key: string): Value | undefined;
  has(key: string): boolean;
  entry(key: string): Entry | undefined;
  keys(): string[];
  [Symbol.iterator](): Iterator<[string, Value]>;
  watch(listener: (change: Change) => void): () => void;
  synced(timeoutMs?: number): Promise<void>;
  /** With `ifRevision`, set only if the key has this revision; with null, only if the key is absent. */
  set(key: string, value: Value, options?: { ttl?: number; ifRevision?: Revision | null }): Promise<Done>;
  delete(key: string, options?: { ifRevision?: Revision }): Promise<Done>;
  batch(rows: Row[]): Promise<Done>;
  verify(): boolean;
  close(): void;
}
