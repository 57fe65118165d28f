#include "checks.h"

#include <string.h>

#include "values.h"

/* --- from C to values and back ----------------------------------------------------------------------------------- */

static oo_value shape_of(oo_state *s, const oo_tensor *tensor) {
    if (tensor->rank < 0) return oo_none;
    oo_value *dims = oo_allocate(s, (size_t)tensor->rank * sizeof *dims);
    for (int64_t i = 0; i < tensor->rank; i++) {
        const oo_dim *dim = &tensor->dims[i];
        dims[i] = dim->size >= 0 ? oo_int(s, dim->size) : dim->name != NULL ? oo_str(s, dim->name) : oo_none;
    }
    return oo_new(s, OO_TUPLE, 0, tensor->rank, dims);
}

static oo_value type_of(oo_state *s, const oo_tensor *tensor) {
    if (!tensor->given) return oo_none;
    oo_value dtype = tensor->dtype ? oo_int(s, tensor->dtype) : oo_none;
    return oo_new(s, OO_RECORD, oo_translated.tensor_type, 2, (oo_value[]){dtype, shape_of(s, tensor)});
}

static oo_value value_of(oo_state *s, const oo_attribute *attribute, char kind) {
    if (kind == 'i') return oo_int(s, attribute->integer);
    if (kind == 'f') return oo_float(s, attribute->number);
    oo_value list = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = 0; i < attribute->count; i++)
        if (kind == 'I') oo_append(s, list, oo_int(s, ((const int64_t *)attribute->list)[i]));
        else oo_append(s, list, oo_float(s, ((const float *)attribute->list)[i]));
    return list;
}

static oo_value attributes_of(oo_state *s, const oo_op *op, const oo_call *call) {
    oo_value given = oo_new(s, OO_DICT, 0, 0, NULL);
    for (int i = 0; i < op->attributes.fields; i++) {
        const oo_field *field = &op->attributes.field[i];
        const oo_attribute *attribute = &call->attribute[i];
        if (attribute->given) oo_set_item(s, given, field->name, value_of(s, attribute, field->kind));
    }
    return given;
}

static oo_value wanted_of(oo_state *s, const oo_op *op, const oo_call *call) {
    oo_value wanted = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int i = 0; i < op->outputs; i++) oo_append(s, wanted, oo_bool(call->wanted[i]));
    return wanted;
}

static void tensor_of(oo_state *s, oo_value type, oo_tensor *tensor) {
    oo_value dtype = type->as.items[0], shape = type->as.items[1];
    *tensor = (oo_tensor){.given = 1, .dtype = oo_is_true(s, dtype) ? oo_word_of(s, dtype) : 0, .rank = -1};
    if (shape->kind == OO_NONE) return;
    oo_dim *dims = oo_allocate(s, (size_t)shape->count * sizeof *dims);
    for (int64_t i = 0; i < shape->count; i++) {
        oo_value dim = shape->as.items[i];
        if (dim->kind == OO_STR) dims[i] = (oo_dim){-1, dim->as.text};
        else dims[i] = (oo_dim){dim->kind == OO_NONE ? -1 : oo_word_of(s, dim), NULL};
    }
    tensor->rank = shape->count;
    tensor->dims = dims;
}

/* --- records ------------------------------------------------------------------------------------------------------ */

static void write_number(oo_state *s, char *at, char kind, oo_value value) {
    if (kind == 'i') *(int64_t *)at = oo_word_of(s, value);
    else if (kind == 'd') *(double *)at = oo_number_of(s, value);
    else *(float *)at = (float)oo_number_of(s, value);
}

/* A copy of a list in memory. */
static oo_list copied(oo_state *s, const oo_field *field, oo_value list) {
    char kind = field->kind == 'I' ? 'i' : 'f';
    size_t width = kind == 'i' ? sizeof(int64_t) : sizeof(float);
    char *data = oo_allocate(s, (size_t)list->count * width);
    for (int64_t i = 0; i < list->count; i++) write_number(s, data + (size_t)i * width, kind, list->as.items[i]);
    return (oo_list){field->offset, data, list->count * (int64_t)width};
}

/* Write the items of a dictionary to the fields of a record; functions and lists are noted in the parts. */
static void *written(oo_state *s, const oo_layout *layout, oo_value items, oo_kernel_parts *parts) {
    char *record = oo_allocate(s, (size_t)layout->bytes);
    memset(record, 0, (size_t)layout->bytes);
    for (int64_t i = 0; i < items->count; i++) {
        oo_value name = items->as.items[2 * i], value = items->as.items[2 * i + 1];
        const oo_field *field = layout->field;
        while (field < layout->field + layout->fields && !oo_equal(s, field->name, name)) field++;
        if (field == layout->field + layout->fields) oo_fail(s, "KeyError: a record has no such field");
        char *at = record + field->offset;
        if (value->kind == OO_NATIVE) {
            oo_place place = {layout == &oo_translated.loop, field->offset, (int64_t)value->as.integer};
            ((oo_place *)parts->function)[parts->functions++] = place;
        } else if (field->kind == 'I' || field->kind == 'F') {
            ((oo_list *)parts->list)[parts->lists++] = copied(s, field, value);
            *(int64_t *)(record + field->count) = value->count;
        } else if (field->count == 1) {
            write_number(s, at, field->kind, value);
        } else {
            if (value->count != field->count) oo_fail(s, "ValueError: a field has another number of elements");
            for (int k = 0; k < field->count; k++) write_number(s, at + 8 * k, field->kind, value->as.items[k]);
        }
    }
    return record;
}

/* --- what is asked ----------------------------------------------------------------------------------------------- */

/* What is asked of which call; `error` is what came of it, and `text` says. */
typedef struct {
    const oo_call *call;
    const char *node;
    oo_tensor *output;
    oo_kernel_parts *parts;
    oo_value error;
    const char *text;
} question;

typedef void work(oo_state *s, question *asked);

/* Do some work; returns the text of an exception. */
static const char *guarded(oo_state *s, work *own, question *asked) {
    s->error = NULL;
    s->problem = NULL;
    if (setjmp(s->jump) == 0) own(s, asked);
    return s->problem;
}

static void explain(oo_state *s, question *asked) {
    const oo_value *items = asked->error->as.items;
    oo_value node = asked->node != NULL ? oo_str(s, asked->node) : oo_none;
    oo_value fields[] = {items[0], items[1], items[2], node};
    oo_value error = oo_new(s, OO_RECORD, asked->error->type, 4, fields);
    asked->text = oo_translated.text(s, &error)->as.text;
}

static const char *answered(oo_arena *arena, work *own, question *asked) {
    oo_state state = {.arena = arena};
    const char *problem = guarded(&state, own, asked);
    if (state.error == NULL) return problem;
    asked->error = state.error;
    problem = guarded(&state, explain, asked);
    return problem != NULL ? problem : asked->text;
}

static oo_value inferred(oo_state *s, const oo_op *op, oo_value call) {
    oo_value types = oo_translated.infer(s, (oo_value[]){op->self, call});
    if (types->kind != OO_TUPLE || types->count != op->outputs) oo_fail(s, "TypeError: wrong outputs");
    return types;
}

/* The `Call`; without shapes if they are not wanted. */
static oo_value call_of(oo_state *s, const oo_op *op, const oo_call *call, int shapes) {
    oo_value inputs = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = 0; i < call->inputs; i++) {
        oo_tensor tensor = call->input[i];
        if (!shapes) tensor.rank = -1;
        oo_append(s, inputs, type_of(s, &tensor));
    }
    oo_value made[] = {op->self, inputs, attributes_of(s, op, call), wanted_of(s, op, call)};
    return oo_translated.call(s, made);
}

static void infer(oo_state *s, question *asked) {
    const oo_op *op = &oo_translated.op[asked->call->op];
    oo_value types = inferred(s, op, call_of(s, op, asked->call, 1));
    for (int i = 0; i < op->outputs; i++) tensor_of(s, types->as.items[i], &asked->output[i]);
}

static void check_arrays(oo_state *s, question *asked) {
    const oo_call *call = asked->call;
    const oo_op *op = &oo_translated.op[call->op];
    oo_value arrays = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = 0; i < call->inputs; i++)
        oo_append(s, arrays, call->input[i].given ? oo_array(s, &call->input[i]) : oo_none);
    oo_translated.check_arrays(s, (oo_value[]){op->self, arrays, attributes_of(s, op, call), wanted_of(s, op, call)});
}

static void choose(oo_state *s, question *asked) {
    const oo_op *op = &oo_translated.op[asked->call->op];
    oo_kernel_parts *parts = asked->parts;
    oo_value call = call_of(s, op, asked->call, 0), fields[2];
    oo_unpack(s, oo_translated.fields(s, (oo_value[]){op->self, call}), 2, -1, fields);
    oo_set_item(s, fields[0], oo_str(s, "op"), oo_int(s, asked->call->op));
    *parts = (oo_kernel_parts){
        .kernel_bytes = oo_translated.kernel.bytes,
        .loop_bytes = fields[1]->kind == OO_NONE ? 0 : oo_translated.loop.bytes,
        .attributes_bytes = op->attributes.bytes,
        .function = oo_allocate(s, (size_t)(oo_translated.kernel.fields + oo_translated.loop.fields) * sizeof(oo_place)),
        .list = oo_allocate(s, (size_t)op->attributes.fields * sizeof(oo_list)),
    };
    parts->kernel = written(s, &oo_translated.kernel, fields[0], parts);
    if (parts->loop_bytes) parts->loop = written(s, &oo_translated.loop, fields[1], parts);
    parts->attributes = written(s, &op->attributes, oo_attribute_of(s, call, OO_NAME_attributes), parts);
}

const char *oo_infer(oo_arena *arena, const oo_call *call, const char *node, oo_tensor output[OO_MAX_OUTPUTS]) {
    return answered(arena, infer, &(question){.call = call, .node = node, .output = output});
}

const char *oo_check_arrays(oo_arena *arena, const oo_call *call, const char *node) {
    return answered(arena, check_arrays, &(question){.call = call, .node = node});
}

const char *oo_kernel(oo_arena *arena, const oo_call *call, oo_kernel_parts *parts) {
    return answered(arena, choose, &(question){.call = call, .parts = parts});
}
