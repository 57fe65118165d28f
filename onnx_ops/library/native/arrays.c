/* Arrays of NumPy: what the checks of values ask of them. */
#include <string.h>

#include "values.h"

enum { FLOAT = 1, UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL = 9, FLOAT16, DOUBLE, UINT32, UINT64, BFLOAT16 = 16 };

static size_t width_of(oo_state *s, int64_t dtype) {
    switch (dtype) {
    case UINT8: case INT8: case BOOL: return 1;
    case UINT16: case INT16: case FLOAT16: case BFLOAT16: return 2;
    case FLOAT: case INT32: case UINT32: return 4;
    case DOUBLE: case INT64: case UINT64: return 8;
    default: oo_fail(s, "TypeError: an array of such a dtype");
    }
}

int64_t oo_size_of(const oo_tensor *array) {
    int64_t size = 1;
    for (int64_t i = 0; i < array->rank; i++) size *= array->dims[i].size;
    return size;
}

static float single_of(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static double half(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits >> 15) << 31, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 0) {
        double size = fraction * 0x1p-24;
        return sign ? -size : size;
    }
    return single_of(sign | (exponent == 31 ? 0xFFu : exponent + 112) << 23 | fraction << 13);
}

static int is_real(int64_t dtype) { return dtype == FLOAT || dtype == DOUBLE || dtype == FLOAT16 || dtype == BFLOAT16; }

static double real_at(const oo_tensor *array, int64_t i) {
    switch (array->dtype) {
    case FLOAT: return ((const float *)array->data)[i];
    case FLOAT16: return half(((const uint16_t *)array->data)[i]);
    case BFLOAT16: return single_of((uint32_t)((const uint16_t *)array->data)[i] << 16);
    default: return ((const double *)array->data)[i];
    }
}

static oo_integer whole_at(oo_state *s, const oo_tensor *array, int64_t i) {
    const void *data = array->data;
    switch (array->dtype) {
    case UINT8: case BOOL: return ((const uint8_t *)data)[i];
    case INT8: return ((const int8_t *)data)[i];
    case UINT16: return ((const uint16_t *)data)[i];
    case INT16: return ((const int16_t *)data)[i];
    case INT32: return ((const int32_t *)data)[i];
    case UINT32: return ((const uint32_t *)data)[i];
    case INT64: return ((const int64_t *)data)[i];
    case UINT64: return ((const uint64_t *)data)[i];
    default: oo_fail(s, "TypeError: an array of floats in place of integers");
    }
}

static oo_value element(oo_state *s, const oo_tensor *array, int64_t i) {
    if (is_real(array->dtype)) return oo_float(s, real_at(array, i));
    oo_integer value = whole_at(s, array, i);
    return array->dtype == BOOL ? oo_bool(value != 0) : oo_int(s, value);
}

/* A part of an array, of the same memory: `count` axes less, from an element on. */
static oo_value part(oo_state *s, const oo_tensor *array, int64_t axes, int64_t first) {
    if (axes == array->rank) return element(s, array, first);
    oo_tensor *own = oo_allocate(s, sizeof *own);
    *own = *array;
    own->rank -= axes;
    own->dims += axes;
    own->data = (const char *)array->data + (size_t)first * width_of(s, array->dtype);
    return oo_array(s, own);
}

static oo_tensor *new_array(oo_state *s, int64_t dtype, int64_t rank, const int64_t *sizes) {
    oo_tensor *own = oo_allocate(s, sizeof *own);
    oo_dim *dims = oo_allocate(s, (size_t)rank * sizeof *dims);
    for (int64_t i = 0; i < rank; i++) dims[i] = (oo_dim){sizes[i], NULL};
    *own = (oo_tensor){1, dtype, rank, dims, NULL};
    own->data = oo_allocate(s, (size_t)oo_size_of(own) * width_of(s, dtype));
    return own;
}

oo_value oo_item_of_array(oo_state *s, oo_value x, oo_value key) {
    const oo_tensor *array = x->as.array;
    const oo_value *indices = key->kind == OO_TUPLE || key->kind == OO_LIST ? key->as.items : &key;
    int64_t count = indices == &key ? 1 : key->count, first = 0;
    if (count > array->rank) oo_fail(s, "IndexError: too many indices for an array");
    for (int64_t i = 0; i < array->rank; i++) {
        int64_t size = array->dims[i].size, index = i < count ? oo_word_of(s, indices[i]) : 0;
        if (index < 0) index += size;
        if (i < count && (index < 0 || index >= size)) oo_fail(s, "IndexError: index out of bounds");
        first = first * size + index;
    }
    return part(s, array, count, first);
}

oo_value oo_slice_of_array(oo_state *s, oo_value x, int64_t first, int64_t last) {
    const oo_tensor *array = x->as.array;
    oo_dim *dims = oo_allocate(s, (size_t)array->rank * sizeof *dims);
    memcpy(dims, array->dims, (size_t)array->rank * sizeof *dims);
    int64_t row = 1;
    for (int64_t i = 1; i < array->rank; i++) row *= dims[i].size;
    dims[0].size = last > first ? last - first : 0;
    oo_tensor whole = *array;
    whole.dims = dims;
    return part(s, &whole, 0, dims[0].size ? first * row : 0);
}

oo_value oo_to_list(oo_state *s, const oo_value *a) {
    if (a[0]->kind == OO_LIST) return a[0]; /* a place, see oo_place_at */
    if (a[0]->kind != OO_ARRAY) oo_fail(s, "AttributeError: not an array");
    const oo_tensor *array = a[0]->as.array;
    if (array->rank == 0) return element(s, array, 0);
    oo_value list = oo_new(s, OO_LIST, 0, 0, NULL);
    int64_t count = array->dims[0].size, row = count ? oo_size_of(array) / count : 0;
    for (int64_t i = 0; i < count; i++) {
        oo_value own = part(s, array, 1, i * row);
        oo_append(s, list, own->kind == OO_ARRAY ? oo_to_list(s, &own) : own);
    }
    return list;
}

oo_value oo_only(oo_state *s, const oo_value *a) {
    if (a[0]->kind != OO_ARRAY) return a[0];
    if (oo_size_of(a[0]->as.array) != 1) oo_fail(s, "ValueError: an array of other than one element");
    return element(s, a[0]->as.array, 0);
}

oo_value oo_arange(oo_state *s, const oo_value *a) {
    int64_t count = oo_word_of(s, a[0]);
    oo_tensor *own = new_array(s, INT64, 1, &(int64_t){count < 0 ? 0 : count});
    for (int64_t i = 0; i < count; i++) ((int64_t *)own->data)[i] = i;
    return oo_array(s, own);
}

oo_value oo_reshape(oo_state *s, const oo_value *a) {
    oo_tensor *own = oo_allocate(s, sizeof *own);
    if (a[0]->kind != OO_ARRAY || a[1]->kind != OO_TUPLE) oo_fail(s, "TypeError: reshape");
    *own = *a[0]->as.array;
    oo_dim *dims = oo_allocate(s, (size_t)a[1]->count * sizeof *dims);
    for (int64_t i = 0; i < a[1]->count; i++) dims[i] = (oo_dim){oo_word_of(s, a[1]->as.items[i]), NULL};
    own->rank = a[1]->count;
    own->dims = dims;
    if (oo_size_of(own) != oo_size_of(a[0]->as.array)) oo_fail(s, "ValueError: an array of another size");
    return oo_array(s, own);
}

/* --- one element at a time --------------------------------------------------------------------------------------- */

/* An operand of an operation on elements: where it begins, and how far its elements are apart along each axis. */
typedef struct {
    const oo_tensor *array;
    int64_t at;
    int64_t stride[OO_MAX_RANK];
} operand;

static operand operand_of(oo_state *s, oo_value x, int64_t rank, int64_t *sizes) {
    if (x->kind != OO_ARRAY) {
        oo_tensor *own = new_array(s, INT64, 0, NULL);
        *(int64_t *)own->data = oo_word_of(s, x);
        return (operand){.array = own};
    }
    const oo_tensor *array = x->as.array;
    operand own = {.array = array};
    int64_t stride = 1;
    for (int64_t i = array->rank; i-- > 0;) {
        int64_t axis = rank - array->rank + i, size = array->dims[i].size;
        own.stride[axis] = size == 1 ? 0 : stride;
        stride *= size;
        if (size != 1 && sizes[axis] != 1 && sizes[axis] != size) oo_fail(s, "ValueError: arrays do not broadcast");
        if (size != 1) sizes[axis] = size;
    }
    return own;
}

oo_value oo_elementwise(oo_state *s, char operation, int count, const oo_value *values) {
    int64_t rank = 0, sizes[OO_MAX_RANK], index[OO_MAX_RANK] = {0};
    for (int k = 0; k < count; k++)
        if (values[k]->kind == OO_ARRAY && values[k]->as.array->rank > rank) rank = values[k]->as.array->rank;
    if (rank > OO_MAX_RANK) oo_fail(s, "ValueError: an array of too many dimensions");
    for (int64_t i = 0; i < rank; i++) sizes[i] = 1;
    operand own[3];
    for (int k = 0; k < count; k++) own[k] = operand_of(s, values[k], rank, sizes);
    int is_truth = strchr("<>lg|", operation) != NULL;
    oo_tensor *out = new_array(s, is_truth ? BOOL : INT64, rank, sizes);
    int64_t size = oo_size_of(out);
    for (int64_t i = 0; i < size; i++) {
        oo_integer v[3] = {0};
        for (int k = 0; k < count; k++) v[k] = whole_at(s, own[k].array, own[k].at);
        if (is_truth) {
            int truth = operation == '<' ? v[0] < v[1] : operation == '>' ? v[0] > v[1] : operation == 'l' ? v[0] <= v[1]
                        : operation == 'g' ? v[0] >= v[1] : v[0] || v[1];
            ((uint8_t *)out->data)[i] = (uint8_t)truth;
        } else {
            oo_integer found = operation == '-' ? v[0] - v[1] : operation == '*' ? v[0] * v[1] : v[0] ? v[1] : v[2];
            ((int64_t *)out->data)[i] = (int64_t)found; /* wraps as in NumPy */
        }
        for (int64_t axis = rank; axis-- > 0;) {
            index[axis]++;
            for (int k = 0; k < count; k++) own[k].at += own[k].stride[axis];
            if (index[axis] < sizes[axis]) break;
            for (int k = 0; k < count; k++) own[k].at -= own[k].stride[axis] * sizes[axis];
            index[axis] = 0;
        }
    }
    return oo_array(s, out);
}

oo_value oo_compared(oo_state *s, char operation, oo_value a, oo_value b) {
    if (a->kind == OO_ARRAY || b->kind == OO_ARRAY) return oo_elementwise(s, operation, 2, (oo_value[]){a, b});
    switch (operation) {
    case '<': return oo_bool(oo_less(s, a, b));
    case '>': return oo_bool(oo_less(s, b, a));
    case 'l': return oo_bool(oo_at_most(s, a, b));
    default: return oo_bool(oo_at_most(s, b, a));
    }
}

oo_value oo_where(oo_state *s, const oo_value *a) { return oo_elementwise(s, '?', 3, a); }

int64_t oo_next_place(oo_state *s, oo_value mask, int64_t from) {
    if (mask->kind != OO_ARRAY) oo_fail(s, "TypeError: not an array");
    int64_t size = oo_size_of(mask->as.array);
    for (int64_t i = from; i < size; i++)
        if (whole_at(s, mask->as.array, i)) return i;
    return -1;
}

oo_value oo_place_at(oo_state *s, oo_value mask, int64_t number) {
    const oo_tensor *array = mask->as.array;
    oo_value indices[OO_MAX_RANK];
    for (int64_t i = array->rank; i-- > 0;) {
        indices[i] = oo_int(s, number % array->dims[i].size);
        number /= array->dims[i].size;
    }
    return oo_new(s, OO_LIST, 0, array->rank, indices);
}
