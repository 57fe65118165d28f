/* The ops as custom ops of onnxruntime: what `runtime.registration` and `runtime.requests` do in Python. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "values.h"

enum { UNKNOWN = -1, MAX_NAME = 48, NO_MEMORY = 2 };

static const void *api; /* OrtApi*, the same in the whole process */
static const oo_level *level;
static oo_python_record python; /* only `fail` is used */

#define EXPORTED __attribute__((visibility("default")))

/* --- what Python passes for the options that this thread registers the library with, and the session that it makes -- */

static _Thread_local struct {
    int64_t count;
    const char *const *names;
} chosen = {-1, NULL}; /* kernels that are registered, -1 for all */

static _Thread_local struct {
    int64_t count;
    const char *const *outputs, *const *labels;
} names; /* descriptions of nodes by names of outputs; onnxruntime drops the names of nodes */
static _Thread_local int64_t region; /* bytes of the first region of the session's memory arena */

static int has_kernel(const char *kernel) {
    for (int64_t i = 0; i < oo_declaration_count; i++)
        if (!strcmp((const char *)oo_declarations[i].native.name, kernel))
            return 1;
    return 0;
}

/* `prebuilt.Library.register`: sets the kernels. */
static void choose_kernels(int64_t count, const char *const *kernels) {
    chosen.count = count;
    chosen.names = kernels;
}

/* `prebuilt.Library.naming`: sets the descriptions, 0 for none. */
static void name_nodes(int64_t count, const char *const *outputs, const char *const *labels) {
    names.count = count;
    names.outputs = outputs;
    names.labels = labels;
}

/* `prebuilt.Library.reserving`: sets the region, 0 for one that the arena chooses. */
static void set_region(int64_t bytes) { region = bytes; }

/* The label of an output without the bytes from `first` to `rest`; NULL if there is none. */
static const char *named_without(const char *output, size_t first, const char *rest) {
    for (int64_t i = 0; i < names.count; i++)
        if (!strncmp(names.outputs[i], output, first) && !strcmp(names.outputs[i] + first, rest))
            return *names.labels[i] ? names.labels[i] : NULL;
    return NULL;
}

/* As `linking.origins.Origins.__call__`. */
static const char *named(const char *output) {
    static const char inner[] = "_inlfunc_", repeated[] = "_token_";
    const char *label = named_without(output, 0, output);
    if (strncmp(output, inner, sizeof inner - 1))
        return label;
    for (const char *at = output; !label && (at = strstr(at, repeated)); at++) {
        const char *digits = at + sizeof repeated - 1, *rest = digits + strspn(digits, "0123456789");
        if (rest > digits && *rest == '_')
            label = named_without(output, (size_t)(at - output), rest);
    }
    return label;
}

/* --- memory of one request ---------------------------------------------------------------------------------------- */

/* Blocks that are freed at the end of a request, and the arena of its checks. */
typedef struct block {
    struct block *next;
    max_align_t data[];
} block;

typedef struct {
    block *blocks;
    oo_arena *arena;
} request;

static void *take(request *own, size_t size) {
    block *made = malloc(sizeof *made + (size ? size : 1));
    if (!made)
        return NULL;
    made->next = own->blocks;
    own->blocks = made;
    return made->data;
}

static int start(request *own) {
    own->blocks = NULL;
    own->arena = oo_arena_new();
    return own->arena != NULL;
}

static void end(request *own) {
    while (own->blocks) {
        block *next = own->blocks->next;
        free(own->blocks);
        own->blocks = next;
    }
    if (own->arena)
        oo_arena_free(own->arena);
}

static void *status(const char *text) { return oo_CreateStatus(api, OO_INVALID_ARGUMENT, text); }

static void *no_memory(void) { return status("onnx_ops: there is no thread or no memory for this node"); }

/* Whether a function of the OrtApi succeeded. */
static int ok(void *failure) {
    if (failure)
        oo_ReleaseStatus(api, failure);
    return !failure;
}

/* --- calls of nodes ----------------------------------------------------------------------------------------------- */

/* Reads dtype and shape of an OrtTensorTypeAndShapeInfo, whose names of dimensions must live as long as the tensor.
   Returns whether there is memory. A shape of rank 0 is unknown unless it is that of a value. */
static int read_type(request *own, void *info, int of_value, oo_tensor *tensor) {
    int dtype = 0;
    size_t rank = 0;
    ok(oo_GetTensorElementType(api, info, &dtype));
    ok(oo_GetDimensionsCount(api, info, &rank));
    tensor->given = dtype != 0;
    tensor->dtype = dtype;
    tensor->rank = rank || of_value ? (int64_t)rank : UNKNOWN;
    int64_t *sizes = take(own, rank * sizeof *sizes);
    const char **names = take(own, rank * sizeof *names);
    oo_dim *dims = take(own, rank * sizeof *dims);
    if (!sizes || !names || !dims)
        return 0;
    memset(sizes, 0, rank * sizeof *sizes);
    memset(names, 0, rank * sizeof *names);
    ok(oo_GetDimensions(api, info, sizes, rank));
    ok(oo_GetSymbolicDimensions(api, info, names, rank));
    for (size_t i = 0; i < rank; i++) {
        int known = sizes[i] >= 0, named = !known && names[i] && *names[i];
        dims[i] = (oo_dim){known ? sizes[i] : UNKNOWN, named ? names[i] : NULL};
    }
    tensor->dims = dims;
    return 1;
}

/* Reads a list attribute by a function that takes a buffer and its size; a query of the size may be an error. */
static int read_list(request *own, void *info, const oo_field *known, oo_attribute *value) {
    size_t count = 0;
    int whole = known->kind == 'I';
    ok(whole ? oo_KernelInfoGetAttributeArray_int64(api, info, known->name->as.text, NULL, &count)
             : oo_KernelInfoGetAttributeArray_float(api, info, known->name->as.text, NULL, &count));
    void *list = take(own, count * (whole ? sizeof(int64_t) : sizeof(float)));
    if (!list)
        return 0;
    value->given = ok(whole ? oo_KernelInfoGetAttributeArray_int64(api, info, known->name->as.text, list, &count)
                            : oo_KernelInfoGetAttributeArray_float(api, info, known->name->as.text, list, &count));
    value->list = list;
    value->count = (int64_t)count;
    return 1;
}

/* Reads an attribute of the node of an OrtKernelInfo. */
static int read_attribute(request *own, void *info, const oo_field *known, oo_attribute *value) {
    if (known->kind == 'i')
        value->given = ok(oo_KernelInfoGetAttribute_int64(api, info, known->name->as.text, &value->integer));
    else if (known->kind == 'f')
        value->given = ok(oo_KernelInfoGetAttribute_float(api, info, known->name->as.text, &value->number));
    else
        return read_list(own, info, known, value);
    return 1;
}

/* Reads an attribute of the node of an OrtShapeInferContext. */
static int read_inferred(request *own, void *context, const oo_field *known, oo_attribute *value) {
    enum { INT = 1, INTS = 2, FLOAT = 3, FLOATS = 4 }; /* OrtOpAttrType */
    void *attribute = NULL;
    size_t bytes = 0;
    if (!ok(oo_ShapeInferContext_GetAttribute(api, context, known->name->as.text, &attribute)) || !attribute)
        return 1;
    if (known->kind == 'i') {
        value->given = ok(oo_ReadOpAttr(api, attribute, INT, &value->integer, sizeof value->integer, &bytes));
        return 1;
    }
    if (known->kind == 'f') {
        value->given = ok(oo_ReadOpAttr(api, attribute, FLOAT, &value->number, sizeof value->number, &bytes));
        return 1;
    }
    int kind = known->kind == 'I' ? INTS : FLOATS;
    value->given = ok(oo_ReadOpAttr(api, attribute, kind, NULL, 0, &bytes));
    if (!value->given && bytes > 0) {
        void *list = take(own, bytes);
        if (!list)
            return 0;
        value->given = ok(oo_ReadOpAttr(api, attribute, kind, list, bytes, &bytes));
        value->list = list;
        value->count = (int64_t)(bytes / (kind == INTS ? sizeof(int64_t) : sizeof(float)));
    }
    return 1;
}

/* --- creation of kernels ------------------------------------------------------------------------------------------ */

/* Reads the outputs of a node: which are wanted, and its description, NULL if none has a name. */
static int read_outputs(request *own, void *info, const oo_op *op, oo_call *call, char **label) {
    static const char form[] = "node with output '%s'";
    size_t count = 0;
    ok(oo_KernelInfo_GetOutputCount(api, info, &count));
    for (size_t k = 0; k < count; k++) {
        size_t size = 0;
        ok(oo_KernelInfo_GetOutputName(api, info, k, NULL, &size));
        char *name = take(own, size + 1);
        if (!name)
            return 0;
        *name = 0;
        ok(oo_KernelInfo_GetOutputName(api, info, k, name, &size));
        /* onnxruntime gives an output that the node does not have a name like this one. */
        int wanted = *name && (strncmp(name, OO_INLINED, sizeof OO_INLINED - 1) || !strstr(name, "_" OO_OMITTED));
        if ((int64_t)k < op->outputs)
            call->wanted[k] = wanted;
        if (wanted && !*label) {
            const char *known = named(name);
            *label = take(own, (known ? strlen(known) : size) + sizeof form);
            if (!*label)
                return 0;
            sprintf(*label, known ? "%s" : form, known ? known : name);
        }
    }
    return 1;
}

/* Reads the inputs of a node. types: receives OrtTypeInfos, which the names of dimensions live in. */
static int read_inputs(request *own, void *info, const oo_op *op, oo_call *call, void **types) {
    size_t count = 0;
    ok(oo_KernelInfo_GetInputCount(api, info, &count));
    call->inputs = (int64_t)count < op->inputs ? (int64_t)count : op->inputs;
    for (int64_t i = 0; i < call->inputs; i++) {
        void *tensor = NULL;
        if (!ok(oo_KernelInfo_GetInputTypeInfo(api, info, i, &types[i])) || !types[i])
            continue;
        ok(oo_CastTypeInfoToTensorInfo(api, types[i], &tensor));
        if (tensor && !read_type(own, tensor, 0, &call->input[i]))
            return 0;
    }
    return 1;
}

static size_t aligned(size_t size) { return (size + 7) / 8 * 8; }

/* One block of memory with the parts of a kernel, which KernelDestroy frees; NULL if there is no memory. */
static void *assembled(const oo_kernel_parts *parts, int64_t op, const char *label) {
    size_t length = strlen(label), size = aligned(parts->kernel_bytes) + aligned(parts->loop_bytes);
    size_t attributes_at = size, label_at = attributes_at + aligned(parts->attributes_bytes);
    size = label_at + aligned(length);
    for (int64_t i = 0; i < parts->lists; i++)
        size += aligned(parts->list[i].bytes);
    char *memory = malloc(size);
    if (!memory)
        return NULL;
    oo_kernel_record *kernel = (oo_kernel_record *)memory;
    char *loop = parts->loop ? memory + aligned(parts->kernel_bytes) : NULL, *attributes = memory + attributes_at;
    memcpy(memory, parts->kernel, parts->kernel_bytes);
    if (loop) {
        memcpy(loop, parts->loop, parts->loop_bytes);
        ((oo_loop_record *)loop)->cache = oo_cache_bytes();
        ((oo_loop_record *)loop)->cores = oo_available_cores();
    }
    memcpy(attributes, parts->attributes, parts->attributes_bytes);
    memcpy(memory + label_at, label, length);
    for (int64_t i = 0; i < parts->functions; i++) {
        const oo_place *place = &parts->function[i];
        void *address = level->functions[place->function];
        memcpy((place->loop ? loop : memory) + place->offset, &address, sizeof address);
    }
    char *list = memory + label_at + aligned(length);
    for (int64_t i = 0; i < parts->lists; i++) {
        memcpy(list, parts->list[i].data, parts->list[i].bytes);
        memcpy(attributes + parts->list[i].offset, &list, sizeof list);
        list += aligned(parts->list[i].bytes);
    }
    kernel->api = (int64_t)api;
    kernel->python = (int64_t)&python;
    kernel->op = op;
    kernel->node_label = (int64_t)(memory + label_at);
    kernel->node_label_bytes = (int64_t)length;
    kernel->attributes = (int64_t)attributes;
    kernel->loop = (int64_t)loop;
    return memory;
}

/* As `runtime.requests._reserve`, for the first kernel of a session. */
static void reserve(void *info) {
    enum { DEFAULT_MEMORY = 0 }; /* OrtMemTypeDefault */
    void *allocator = NULL, *block = NULL;
    if (region && ok(oo_KernelInfoGetAllocator(api, info, DEFAULT_MEMORY, &allocator))) {
        if (ok(oo_AllocatorAlloc(api, allocator, (size_t)region, &block)))
            ok(oo_AllocatorFree(api, allocator, block));
        oo_ReleaseAllocator(api, allocator);
    }
    region = 0;
}

static void *create(request *own, int64_t number, void *info, void **types, void **kernel) {
    const oo_op *op = &oo_translated.op[number];
    oo_call call = {.op = number};
    oo_tensor outputs[OO_MAX_OUTPUTS];
    oo_kernel_parts parts = {0};
    char *label = NULL;
    if (!read_outputs(own, info, op, &call, &label) || !read_inputs(own, info, op, &call, types))
        return no_memory();
    for (int64_t i = 0; i < op->attributes.fields; i++)
        if (!read_attribute(own, info, &op->attributes.field[i], &call.attribute[i]))
            return no_memory();
    const char *problem = oo_infer(own->arena, &call, label, outputs);
    if (!problem)
        problem = oo_kernel(own->arena, &call, &parts);
    if (problem)
        return status(problem);
    reserve(info);
    *kernel = assembled(&parts, number, label ? label : "");
    return *kernel ? NULL : no_memory();
}

/* CreateKernelV2 */
static void *create_kernel(void *self, const void *own_api, void *info, void **kernel) {
    request own;
    void *types[OO_MAX_INPUTS] = {0}, *failure;
    (void)own_api;
    failure = start(&own) ? create(&own, ((oo_declaration *)self)->op, info, types, kernel) : no_memory();
    for (int i = 0; i < OO_MAX_INPUTS; i++)
        if (types[i])
            oo_ReleaseTypeInfo(api, types[i]);
    end(&own);
    return failure;
}

/* --- shape inference ---------------------------------------------------------------------------------------------- */

static int version_of_onnxruntime; /* minor version */
/* Before SAFE_SHAPE_INFERENCE, shape inference crashes on an omitted input; before SAFE_OUTPUTS, the shape of an omitted
   output may end the process (`runtime.requests`). */
enum { SAFE_SHAPE_INFERENCE = 24, SAFE_OUTPUTS = 31 };

static int set_output(request *own, void *context, int64_t index, const oo_tensor *output) {
    static atomic_llong fresh;
    void *shape = NULL;
    if (!output->dtype || output->rank < 0)
        return 1;
    size_t rank = (size_t)output->rank;
    int64_t *sizes = take(own, rank * sizeof *sizes);
    const char **names = take(own, rank * sizeof *names);
    if (!sizes || !names || !ok(oo_CreateTensorTypeAndShapeInfo(api, &shape)))
        return 0;
    for (size_t i = 0; i < rank; i++) {
        sizes[i] = output->dims[i].size >= 0 ? output->dims[i].size : UNKNOWN;
        names[i] = output->dims[i].size >= 0 ? "" : output->dims[i].name;
        if (!names[i]) { /* a dimension without a name would be taken for -1, and folded into constants */
            char *name = take(own, MAX_NAME);
            if (name)
                snprintf(name, MAX_NAME, "onnx_ops_unknown_%lld", (long long)atomic_fetch_add(&fresh, 1));
            names[i] = name ? name : "onnx_ops_unknown";
        }
    }
    ok(oo_SetTensorElementType(api, shape, (int)output->dtype));
    ok(oo_SetDimensions(api, shape, sizes, rank));
    ok(oo_SetSymbolicDimensions(api, shape, names, rank));
    ok(oo_ShapeInferContext_SetOutputTypeShape(api, context, index, shape)); /* of an omitted output */
    oo_ReleaseTensorTypeAndShapeInfo(api, shape);
    return 1;
}

static void infer(request *own, const oo_declaration *self, void *context) {
    const oo_op *op = &oo_translated.op[self->op];
    const int *optional = oo_operators[self->op].optional_output;
    oo_call call = {.op = self->op};
    oo_tensor outputs[OO_MAX_OUTPUTS];
    size_t count = 0;
    ok(oo_ShapeInferContext_GetInputCount(api, context, &count));
    call.inputs = (int64_t)count < op->inputs ? (int64_t)count : op->inputs;
    for (int64_t i = 0; i < call.inputs; i++) {
        void *info = NULL;
        if (ok(oo_ShapeInferContext_GetInputTypeShape(api, context, i, &info)) && info)
            if (!read_type(own, info, 0, &call.input[i]))
                return;
    }
    for (int64_t i = 0; i < op->attributes.fields; i++)
        if (!read_inferred(own, context, &op->attributes.field[i], &call.attribute[i]))
            return;
    int typed = 1;
    for (int64_t k = 0; k < op->outputs; k++) {
        call.wanted[k] = !optional[k]; /* which are omitted is unknown here */
        typed &= self->native.output_type[k] != 0;
    }
    if (oo_infer(own->arena, &call, NULL, outputs)) {
        if (typed)
            return;
        /* An output without a dtype fails the session before `create_kernel` can return the reason. */
        int64_t dtype = 0;
        for (int64_t i = call.inputs; i-- > 0;)
            dtype = call.input[i].given ? call.input[i].dtype : dtype;
        for (int64_t k = 0; k < op->outputs; k++)
            outputs[k] = (oo_tensor){.given = 1, .dtype = dtype, .rank = UNKNOWN};
    }
    for (int64_t k = 0; k < op->outputs; k++)
        if (!optional[k] || version_of_onnxruntime >= SAFE_OUTPUTS)
            if (!set_output(own, context, k, &outputs[k]))
                return;
}

/* InferOutputShapeFn; onnxruntime ignores errors of this callback, and `create_kernel` returns them. */
static void *infer_output_shape(const void *self, void *context) {
    request own;
    if (start(&own))
        infer(&own, self, context);
    end(&own);
    return NULL;
}

/* --- rejected runs ------------------------------------------------------------------------------------------------ */

/* The attributes of a kernel. */
static void stored_attributes(const oo_op *op, const char *record, oo_attribute *values) {
    for (int64_t i = 0; i < op->attributes.fields; i++) {
        const oo_field *known = &op->attributes.field[i];
        values[i].given = 1;
        if (known->kind == 'i')
            memcpy(&values[i].integer, record + known->offset, sizeof values[i].integer);
        else if (known->kind == 'f')
            memcpy(&values[i].number, record + known->offset, sizeof values[i].number);
        else {
            memcpy(&values[i].list, record + known->offset, sizeof values[i].list);
            memcpy(&values[i].count, record + known->count, sizeof values[i].count);
        }
    }
}

/* A status whose text is put together from parts. */
static void *composed(request *own, const char *kind, const char *op, const char *problem, const char *label) {
    size_t size = strlen(kind) + strlen(op) + strlen(problem) + strlen(label) + 16;
    char *text = take(own, size);
    if (!text)
        return no_memory();
    snprintf(text, size, "onnx_ops: %s: %s: %s%s", kind, op, problem, label);
    return status(text);
}

static void *explain(request *own, const oo_kernel_record *kernel, void *context, int64_t code) {
    const oo_op *op = &oo_translated.op[kernel->op];
    const char *name = oo_operators[kernel->op].name;
    oo_call call = {.op = kernel->op, .inputs = kernel->inputs};
    char *label = take(own, (size_t)kernel->node_label_bytes + 1);
    if (!label)
        return no_memory();
    memcpy(label, (const char *)kernel->node_label, (size_t)kernel->node_label_bytes);
    label[kernel->node_label_bytes] = 0;
    if (code == NO_MEMORY)
        return composed(own, "MemoryError", name, "no memory for intermediate results; ", label);
    for (int64_t i = 0; i < kernel->inputs; i++) {
        void *value = NULL, *info = NULL;
        if (!kernel->element_type[i] || !ok(oo_KernelContext_GetInput(api, context, i, &value)) ||
            !ok(oo_GetTensorTypeAndShape(api, value, &info)))
            continue;
        int there = read_type(own, info, 1, &call.input[i]);
        oo_ReleaseTensorTypeAndShapeInfo(api, info);
        if (!there)
            return no_memory();
        ok(oo_GetTensorMutableData(api, value, &call.input[i].data));
    }
    for (int64_t k = 0; k < op->outputs; k++)
        call.wanted[k] = kernel->output_type[k] != 0;
    stored_attributes(op, (const char *)kernel->attributes, call.attribute);
    const char *problem = oo_check_arrays(own->arena, &call, *label ? label : NULL);
    if (problem)
        return status(problem);
    return composed(own, "AssertionError", name, "the kernel refused a call that its checks accept", "");
}

/* `callbacks.fail`: the OrtStatus of a call that the kernel rejected. */
static void *fail(const void *kernel, void *context, int64_t code) {
    request own;
    void *failure = start(&own) ? explain(&own, kernel, context, code) : no_memory();
    end(&own);
    return failure;
}

/* --- registration ------------------------------------------------------------------------------------------------- */

static const char domain_name[] = "ai.onnx.contrib", provider[] = "CPUExecutionProvider";

/* OrtApiBase */
typedef struct {
    const void *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} api_base;

static void complete(oo_declaration *own) {
    void *const *functions = level->functions;
    for (int64_t i = 0; i < oo_callback_count; i++)
        memcpy((char *)&own->native + oo_callbacks[i].offset, &functions[oo_callbacks[i].function], sizeof(void *));
    if (own->may_inplace >= 0) {
        own->native.GetMayInplace = functions[own->may_inplace];
        own->native.ReleaseMayInplace = functions[own->release_may_inplace];
    }
    own->native.version = OO_API_VERSION;
    own->native.provider = (void *)provider;
    own->native.CreateKernelV2 = (void *)create_kernel;
    own->native.KernelDestroy = (void *)free;
    if (!oo_operators[own->op].has_optional_inputs || version_of_onnxruntime >= SAFE_SHAPE_INFERENCE)
        own->native.InferOutputShapeFn = (void *)infer_output_shape;
}

/* The ops of some sessions, which use it as long as the library is loaded. */
typedef struct domain {
    struct domain *next;
    void *own;
    char has[]; /* by declaration */
} domain;

static int is_chosen(const char *kernel) {
    for (int64_t i = 0; i < chosen.count; i++)
        if (!strcmp(chosen.names[i], kernel))
            return 1;
    return chosen.count < 0;
}

/* The domain with the chosen kernels, which is made if no registration has chosen the same ones. */
static void *domain_of_chosen(void **found) {
    static domain *domains;
    size_t count = (size_t)oo_declaration_count;
    domain *wanted = malloc(sizeof *wanted + count), *known = domains;
    if (!wanted)
        return no_memory();
    for (size_t i = 0; i < count; i++)
        wanted->has[i] = (char)is_chosen((const char *)oo_declarations[i].native.name);
    while (known && memcmp(known->has, wanted->has, count))
        known = known->next;
    void *failure = NULL;
    if (!known) {
        failure = oo_CreateCustomOpDomain(api, domain_name, &wanted->own);
        for (size_t i = 0; !failure && i < count; i++)
            failure = wanted->has[i] ? oo_CustomOpDomain_Add(api, wanted->own, &oo_declarations[i]) : NULL;
    }
    if (known || failure) {
        free(wanted);
    } else {
        wanted->next = domains;
        domains = known = wanted;
    }
    *found = known ? known->own : NULL;
    return failure;
}

/* What onnxruntime calls when the library is registered with SessionOptions; registrations may run at the same time. */
EXPORTED void *RegisterCustomOps(void *options, const api_base *base) {
    static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
    const void *own_api = base->get_api(OO_API_VERSION);
    void *failure = NULL, *own = NULL;
    if (!own_api)
        return NULL; /* without an OrtApi there is no OrtStatus; onnxruntime has written why */
    pthread_mutex_lock(&busy);
    if (!level) {
        int major = 0, minor = 0;
        api = own_api;
        python.fail = (int64_t)fail;
        sscanf(base->get_version(), "%d.%d", &major, &minor);
        version_of_onnxruntime = major > 1 ? SAFE_OUTPUTS : minor;
        for (int64_t i = 0; i < oo_level_count && !level; i++)
            level = oo_runs(oo_levels[i].needs) ? &oo_levels[i] : NULL;
        for (int64_t i = 0; i < oo_declaration_count && level; i++)
            complete(&oo_declarations[i]);
    }
    failure = level ? domain_of_chosen(&own) : status("onnx_ops: the library has no code for this processor");
    if (!failure)
        failure = oo_AddCustomOpDomain(api, options, own);
    pthread_mutex_unlock(&busy);
    return failure;
}

/* The name of the level of processors whose code is used; NULL before the registration. */
static const char *level_name(void) { return level ? level->name : NULL; }

/* `runtime.heap_record.Functions`, after the registration. */
static void heap_functions(const void **found) {
    found[0] = api;
    for (int i = 0; i < OO_HEAP_FUNCTIONS; i++)
        found[1 + i] = level->functions[oo_heap_functions[i]];
}

/* What `prebuilt.Interface` reads: data, so that RegisterCustomOps stays the only function that is exported. */
EXPORTED const struct {
    int64_t version; /* raised with what follows */
    const char *(*level)(void);
    int (*has_kernel)(const char *kernel);
    void (*choose_kernels)(int64_t count, const char *const *kernels);
    void (*name_nodes)(int64_t count, const char *const *outputs, const char *const *labels);
    void (*set_region)(int64_t bytes);
    void (*heap_functions)(const void **found);
} onnx_ops_library = {2, level_name, has_kernel, choose_kernels, name_nodes, set_region, heap_functions};
