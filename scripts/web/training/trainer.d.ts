/** An invalid training step or checkpoint, or arguments that do not match them. */
export class StepError extends Error {
  name: "StepError";
}

/** Bytes of a file; in Node also a Buffer. */
export type Bytes = ArrayBufferView | ArrayBufferLike;

/** The type of a tensor. A dynamic dimension is its name, or null; `dims` is null for an unknown rank. */
export interface TensorType {
  readonly type: string;
  readonly dims: readonly (number | string | null)[] | null;
}

/** What the trainer needs of a tensor of onnxruntime. */
export interface TensorLike {
  readonly type: string;
  readonly dims: readonly number[];
  getData(): Promise<unknown>;
  dispose(): void;
}

/** A tensor of onnxruntime, or its parts: the data as typed array or array of it, or its little-endian bytes. */
export type TensorParts =
  | TensorLike
  | { readonly type: string; readonly dims: readonly number[]; readonly data: Bytes | readonly (number | bigint)[] };

/** The module onnxruntime-web or onnxruntime-node. */
export interface Runtime<T extends TensorLike> {
  Tensor: new (type: any, data: any, dims?: readonly number[]) => T;
  InferenceSession: { create(model: Uint8Array, options?: any): Promise<any> };
}

/** Tensors by name. */
export type Reported<T extends TensorLike = TensorLike> = { [name: string]: T };

export interface TrainerOptions {
  /** The second file of a step that was saved with `external=True`; of a Blob, such as a File, one tensor is read at a time. */
  weights?: Bytes | Blob | null;
  /**
   * Whether a step whose loss is NaN or infinite is refused, true by default. The loss is the first reported output, if it is
   * one floating number. Steps that scale their loss are not checked: they skip the update instead.
   */
  checkFinite?: boolean;
  /**
   * Where the step runs, onnxruntime's default if undefined: `["webgpu"]` for the GPU in onnxruntime-web, in which nodes
   * without a GPU kernel run on the CPU.
   */
  executionProviders?: readonly (string | { readonly name: string })[];
  /** Further options of onnxruntime's InferenceSession.create. */
  sessionOptions?: object;
}

/**
 * Trains with a training step, in onnxruntime-web or onnxruntime-node alone; the counterpart of `onnx_ops.Trainer` in
 * Python.
 *
 * A step that is refused or fails does not change the state. Calls must not overlap: await each promise before the next
 * call. Errors are StepErrors, or those of onnxruntime.
 */
export class Trainer<T extends TensorLike = TensorLike> {
  private constructor();

  /**
   * @param ort The module onnxruntime-web or onnxruntime-node.
   * @param file The bytes of a step's file.
   * @throws StepError: the file is no training step, or has types that JavaScript does not have; weights that do not
   *   belong to it; WebGPU is requested and missing.
   */
  static create<T extends TensorLike>(ort: Runtime<T>, file: Bytes, options?: TrainerOptions): Promise<Trainer<T>>;

  /** The types of the inputs of `step`, by name. */
  readonly batchInputs: Readonly<Record<string, TensorType>>;
  /** The types of the inputs of `infer`, by name; null if the step has no inference graph. */
  readonly inferenceInputs: Readonly<Record<string, TensorType>> | null;
  /** Whether the step has an evaluation graph, for `evaluate`. */
  readonly hasEvaluationGraph: boolean;

  /**
   * Runs one step.
   *
   * @param batch A tensor for each of `batchInputs`, by name.
   * @returns The reported outputs, including the loss.
   * @throws StepError: names, types or shapes of the tensors are wrong; dimensions of the same name differ, or are outside
   *   the bounds of the capture; indices are out of range; a condition of the step is violated; the loss is not finite;
   *   the GPU reports an error.
   */
  step(batch?: Record<string, T>): Promise<Reported<T>>;

  /**
   * The loss and the further reported outputs on the current state, which does not change.
   *
   * @param batch As for `step`.
   * @param mode "eval" (the default) for the loss in evaluation mode, of a step captured with `evaluation=True`; "train" for
   *   the loss as the step computes it.
   * @throws StepError: the step has no evaluation graph; a batch that `step` refuses.
   */
  evaluate(batch?: Record<string, T>, mode?: "eval" | "train"): Promise<Reported<T>>;

  /**
   * Runs the inference graph, in evaluation mode, with the current parameters.
   *
   * @param inputs A tensor for each of `inferenceInputs`, by name.
   * @throws StepError: the step has no inference graph, or names, types or shapes of the tensors are wrong.
   */
  infer(inputs?: Record<string, T>): Promise<Reported<T>>;

  /** Copies of the state: tensors of parameters, buffers, optimizer state, seed and settings, by name. */
  state(): Promise<Record<string, T>>;

  /**
   * Replaces the state.
   *
   * @param state A tensor, or {type, data, dims}, for each name in `state()`. Tied parameters can have any of their names.
   * @param options strict: whether the names must be those of the whole state, true by default. Otherwise names that are
   *   missing keep their values, and others are ignored.
   * @returns The missing and the unexpected names, both empty if `strict`.
   * @throws StepError: names, types, shapes or data are wrong, values of tied parameters differ, or learning rates are not
   *   finite or less than 0. The state is then as before.
   */
  loadState(state: Record<string, TensorParts>, options?: { strict?: boolean }): { missing: string[]; unexpected: string[] };

  /**
   * The state as the bytes of a safetensors file: those that `onnx_ops.Trainer.save` writes of the same state.
   *
   * @param options metadata: strings to store in the file. frozen: whether to write the parameters and buffers that the step
   *   does not change, true by default; a file without them is loaded with `strict: false`.
   */
  save(options?: { metadata?: Record<string, string>; frozen?: boolean }): Promise<Uint8Array>;

  /**
   * Replaces the state by that in a safetensors file, of `save` or of `onnx_ops.Trainer.save`.
   *
   * @param options strict: as for `loadState`; not all names may be unknown.
   * @returns The metadata of the file.
   * @throws StepError: no safetensors file, a damaged one, or a state that does not fit. The state is then as before.
   */
  load(file: Bytes | Blob, options?: { strict?: boolean }): Promise<Record<string, string>>;

  /**
   * The inference graph with the current parameters and buffers, as the bytes of an ONNX model, up to 2 GiB.
   *
   * @param options averaged: whether to write the averages of weights that the step updates in place of the weights.
   * @throws StepError: the step has no inference graph; with `averaged` also one without averages.
   */
  export(options?: { averaged?: boolean }): Promise<Uint8Array>;

  /** The learning rate, or those of the parameter groups. A number sets that of all groups. */
  get learningRate(): number | number[];
  set learningRate(rate: number | readonly number[]);

  /** The seed of the random numbers of the next step, an integer of 64 bits. */
  get seed(): bigint;
  set seed(seed: number | bigint);

  /** Frees the memory. The trainer cannot be used afterwards. */
  release(): Promise<void>;
}
