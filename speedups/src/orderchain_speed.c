/* The hottest functions of orderchain, compiled. Python's own version of each is the reference: see
 * chain_kernel/speed.py. A function returns None for what it does not do; the caller then asks Python,
 * which knows what to say. Every value that comes from outside is checked before it is used. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BIG32(x) __builtin_bswap32(x)
#define BIG64(x) __builtin_bswap64(x)
#else
#define BIG32(x) (x)
#define BIG64(x) (x)
#endif

/* ---- what is given: a list or a tuple, and integers in one of three forms ---- */

typedef struct {
    PyObject *held;
    Py_ssize_t count;
    int is_list;
} Items;

static int items_of(PyObject *given, Items *items)
{
    items->is_list = !PyTuple_Check(given);
    items->held = PyTuple_Check(given) || PyList_Check(given) ? Py_NewRef(given) : PySequence_List(given);
    if (items->held == NULL)
        return -1;
    items->count = items->is_list ? PyList_Size(items->held) : PyTuple_Size(items->held);
    return 0;
}

/* A borrowed reference; NULL with an error beyond the end. */
static PyObject *item_at(const Items *items, Py_ssize_t at)
{
    return items->is_list ? PyList_GetItem(items->held, at) : PyTuple_GetItem(items->held, at);
}

static const char *text_at(const Items *items, Py_ssize_t at, Py_ssize_t *size)
{
    PyObject *text = item_at(items, at);
    return text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, size);
}

static const char *bytes_at(const Items *items, Py_ssize_t at, Py_ssize_t *size)
{
    char *bytes;
    PyObject *value = item_at(items, at);
    return value == NULL || PyBytes_AsStringAndSize(value, &bytes, size) < 0 ? NULL : bytes;
}

typedef struct {
    const int64_t *values; /* NULL: consecutive, from `first` on */
    int64_t first;
    Py_ssize_t count;
    int64_t *owned;
} Ints;

static int64_t int_at(const Ints *ints, Py_ssize_t at)
{
    return ints->values == NULL ? ints->first + at : ints->values[at];
}

static int bounds_of_range(PyObject *range, Ints *ints)
{
    PyObject *start = PyObject_GetAttrString(range, "start"), *step = PyObject_GetAttrString(range, "step");
    int is_good = 0;
    if (start != NULL && step != NULL) {
        ints->first = PyLong_AsLongLong(start);
        is_good = !PyErr_Occurred() && PyLong_AsLongLong(step) == 1 &&
                  (ints->count == 0 || ints->first <= INT64_MAX - (ints->count - 1));
    }
    Py_XDECREF(start);
    Py_XDECREF(step);
    if (!is_good && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a range with another step than 1, or beyond 64 bits");
    return is_good ? 0 : -1;
}

static int ints_of(PyObject *given, Ints *ints)
{
    memset(ints, 0, sizeof *ints);
    if (Py_TYPE(given) == &PyRange_Type) {
        ints->count = PyObject_Size(given);
        return ints->count < 0 ? -1 : bounds_of_range(given, ints);
    }
    if (PyObject_CheckBuffer(given)) {
        Py_buffer buffer;
        if (PyObject_GetBuffer(given, &buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
            return -1;
        const char *format = buffer.format;
        int is_good = buffer.itemsize == 8 && format != NULL && (strcmp(format, "q") == 0 || strcmp(format, "l") == 0);
        if (!is_good)
            PyErr_SetString(PyExc_TypeError, "integers of 64 bits were expected");
        else if ((ints->values = ints->owned = PyMem_Malloc(buffer.len + 8)) == NULL)
            PyErr_NoMemory();
        else {
            /* A copy: others may write there between two passes, and it may begin at any address. */
            memcpy(ints->owned, buffer.buf, buffer.len);
            ints->count = buffer.len / 8;
        }
        PyBuffer_Release(&buffer);
        return ints->owned == NULL ? -1 : 0;
    }
    Items items;
    if (items_of(given, &items) < 0)
        return -1;
    ints->count = items.count;
    ints->values = ints->owned = PyMem_Malloc(items.count * 8 + 8);
    for (Py_ssize_t at = 0; ints->owned != NULL && at < items.count; at++) {
        PyObject *value = item_at(&items, at);
        if (value != NULL && !PyLong_Check(value))
            PyErr_SetString(PyExc_TypeError, "an integer was expected");
        if (value == NULL || PyErr_Occurred() || ((ints->owned[at] = PyLong_AsLongLong(value)) == -1 && PyErr_Occurred())) {
            PyMem_Free(ints->owned);
            ints->owned = NULL;
        }
    }
    Py_DECREF(items.held);
    if (ints->owned == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    return ints->owned == NULL ? -1 : 0;
}

#define ROOM_MAX (1 << 20) /* bytes before a body */

/* Whether `size` bytes may be added to `total`; else there is an error. */
static int has_room(Py_ssize_t total, Py_ssize_t size)
{
    if (size <= UINT32_MAX && total <= PY_SSIZE_T_MAX - 2 * (Py_ssize_t)UINT32_MAX - 64)
        return 1;
    PyErr_SetString(PyExc_ValueError, "a key or a payload of 4 GiB, or too many of them");
    return 0;
}

/* The five columns of rows. */
typedef struct {
    Ints ids, pids, times;
    Items keys, payloads;
    Py_ssize_t count;
} Rows;

static void let_go_rows(Rows *rows)
{
    PyMem_Free(rows->ids.owned);
    PyMem_Free(rows->pids.owned);
    PyMem_Free(rows->times.owned);
    Py_XDECREF(rows->keys.held);
    Py_XDECREF(rows->payloads.held);
}

static int rows_of(PyObject *args, Py_ssize_t *room, Rows *rows)
{
    PyObject *ids, *pids, *keys, *times, *payloads;
    memset(rows, 0, sizeof *rows);
    if (!PyArg_ParseTuple(args, "nOOOOO", room, &ids, &pids, &keys, &times, &payloads))
        return -1;
    if (ints_of(ids, &rows->ids) < 0 || ints_of(pids, &rows->pids) < 0 || items_of(keys, &rows->keys) < 0 ||
        ints_of(times, &rows->times) < 0 || items_of(payloads, &rows->payloads) < 0) {
        let_go_rows(rows);
        return -1;
    }
    Py_ssize_t count = rows->count = rows->ids.count;
    if (*room < 0 || *room > ROOM_MAX || rows->pids.count != count || rows->keys.count != count || rows->times.count != count ||
        rows->payloads.count != count) {
        PyErr_SetString(PyExc_ValueError, "columns of equal length, and a room for a header, were expected");
        let_go_rows(rows);
        return -1;
    }
    return 0;
}

/* ---- orders: taken apart and checked in one pass ---- */

/* Bytes of the keys and payloads; -1 without an error where Python has to look at each order. */
static Py_ssize_t check_rows(const Items *keys, const Items *payloads, const Items *times, Py_ssize_t key_max,
                             Py_ssize_t payload_max, int64_t *packed, int *has_all)
{
    Py_ssize_t total = 0;
    *has_all = 1;
    for (Py_ssize_t at = 0; at < keys->count; at++) {
        PyObject *key = item_at(keys, at), *payload = item_at(payloads, at), *time = item_at(times, at);
        Py_ssize_t size;
        int overflow = 0;
        if (key == NULL || payload == NULL || time == NULL || !PyUnicode_CheckExact(key) || !PyBytes_CheckExact(payload))
            return -1;
        const char *text = PyUnicode_AsUTF8AndSize(key, &size);
        if (text == NULL || size < 1 || size > key_max || memchr(text, 0, size) != NULL)
            return -1;
        Py_ssize_t payload_size = PyBytes_Size(payload);
        if (payload_size > payload_max)
            return -1;
        total += size + payload_size;
        if (time == Py_None)
            *has_all = 0;
        else if (!PyLong_CheckExact(time))
            return -1;
        else
            packed[at] = PyLong_AsLongLongAndOverflow(time, &overflow);
        if (overflow)
            return -1;
    }
    return total;
}

/* checked(keys, payloads, times, key_max, payload_max): (packed times or None, bytes); None if one is bad. */
static PyObject *checked(PyObject *module, PyObject *args)
{
    PyObject *given[3], *found = NULL;
    Items columns[3] = {{0}, {0}, {0}};
    Py_ssize_t key_max, payload_max, total = -1;
    int has_all = 0;
    if (!PyArg_ParseTuple(args, "OOOnn", &given[0], &given[1], &given[2], &key_max, &payload_max))
        return NULL;
    for (int at = 0; at < 3; at++)
        if (items_of(given[at], &columns[at]) < 0)
            goto end;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, columns[0].count * 8);
    if (packed == NULL)
        goto end;
    if (columns[1].count == columns[0].count && columns[2].count == columns[0].count && columns[0].count > 0)
        total = check_rows(&columns[0], &columns[1], &columns[2], key_max, payload_max,
                           (int64_t *)PyBytes_AsString(packed), &has_all);
    PyErr_Clear();
    found = total < 0 ? Py_NewRef(Py_None) : Py_BuildValue("On", has_all ? packed : Py_None, total);
    Py_DECREF(packed);
end:
    for (int at = 0; at < 3; at++)
        Py_XDECREF(columns[at].held);
    return found;
}

static PyObject *names[3];

/* taken_apart(orders): lists of their keys, payloads and times. */
static PyObject *taken_apart(PyObject *module, PyObject *orders)
{
    Items items;
    if (items_of(orders, &items) < 0)
        return NULL;
    PyObject *columns[3], *found = NULL;
    for (int of = 0; of < 3; of++)
        columns[of] = PyList_New(items.count);
    for (Py_ssize_t at = 0; at < items.count && !PyErr_Occurred(); at++) {
        PyObject *order = Py_XNewRef(item_at(&items, at));
        for (int of = 0; of < 3 && order != NULL && !PyErr_Occurred(); of++) {
            PyObject *value = PyObject_GetAttr(order, names[of]);
            if (value != NULL)
                PyList_SetItem(columns[of], at, value);
        }
        Py_XDECREF(order);
    }
    if (!PyErr_Occurred())
        found = PyTuple_Pack(3, columns[0], columns[1], columns[2]);
    for (int of = 0; of < 3; of++)
        Py_XDECREF(columns[of]);
    Py_DECREF(items.held);
    return found;
}

/* ---- images of columns: each element after its length of 4 bytes, big-endian ---- */

static PyObject *int_images(const Ints *ints)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, ints->count * 12);
    char *to = made == NULL ? NULL : PyBytes_AsString(made);
    const uint32_t size = BIG32((uint32_t)8);
    for (Py_ssize_t at = 0; to != NULL && at < ints->count; at++, to += 12) {
        uint64_t value = BIG64((uint64_t)int_at(ints, at));
        memcpy(to, &size, 4);
        memcpy(to + 4, &value, 8);
    }
    return made;
}

typedef const char *(*Element)(const Items *, Py_ssize_t, Py_ssize_t *);

static PyObject *element_images(const Items *items, Element element)
{
    Py_ssize_t total = 0, size;
    for (Py_ssize_t at = 0; at < items->count; at++, total += size + 4)
        if (element(items, at, &size) == NULL || !has_room(total, size))
            return NULL;
    PyObject *made = PyBytes_FromStringAndSize(NULL, total);
    char *to = made == NULL ? NULL : PyBytes_AsString(made);
    for (Py_ssize_t at = 0; to != NULL && at < items->count; at++) {
        const char *from = element(items, at, &size);
        uint32_t length = BIG32((uint32_t)size);
        memcpy(to, &length, 4);
        memcpy(to + 4, from, size);
        to += size + 4;
    }
    return made;
}

/* images(0, ids, pids, keys, times, payloads): the five images of a page. */
static PyObject *images(PyObject *module, PyObject *args)
{
    Rows rows;
    Py_ssize_t room;
    if (rows_of(args, &room, &rows) < 0)
        return NULL;
    PyObject *ids = int_images(&rows.ids), *pids = int_images(&rows.pids), *times = int_images(&rows.times);
    PyObject *keys = element_images(&rows.keys, text_at), *payloads = NULL, *found = NULL;
    if (!PyErr_Occurred())
        payloads = element_images(&rows.payloads, bytes_at);
    if (!PyErr_Occurred())
        found = PyTuple_Pack(5, ids, pids, keys, times, payloads);
    Py_XDECREF(ids);
    Py_XDECREF(pids);
    Py_XDECREF(keys);
    Py_XDECREF(times);
    Py_XDECREF(payloads);
    let_go_rows(&rows);
    return found;
}

/* ---- the body of a frame: MessagePack, each number in its shortest form ---- */

static char *put(char *to, int kind, uint64_t value, int bytes)
{
    uint64_t big = BIG64(value);
    *to++ = (char)kind;
    memcpy(to, (char *)&big + 8 - bytes, bytes);
    return to + bytes;
}

static int width_of(uint64_t value)
{
    return value <= 0xff ? 1 : value <= 0xffff ? 2 : value <= 0xffffffff ? 4 : 8;
}

/* 0, 1, 2 or 3 for a width of 1, 2, 4 or 8. */
static int rank_of(int width) { return width == 8 ? 3 : width >> 1; }

static int int_width(int64_t value)
{
    if (value >= -32 && value < 128)
        return 0;
    if (value >= 0)
        return width_of(value);
    return value >= INT8_MIN ? 1 : value >= INT16_MIN ? 2 : value >= INT32_MIN ? 4 : 8;
}

static char *put_int(char *to, int64_t value)
{
    int width = int_width(value);
    if (width == 0) {
        *to = (char)value;
        return to + 1;
    }
    return put(to, (value >= 0 ? 0xcc : 0xd0) + rank_of(width), value, width);
}

static int text_width(Py_ssize_t size) { return size < 32 ? 0 : width_of(size); }

static char *put_element(char *to, int kind, int width, const char *from, Py_ssize_t size)
{
    if (width == 0)
        *to++ = (char)(0xa0 | size);
    else
        to = put(to, kind + rank_of(width), size, width);
    memcpy(to, from, size);
    return to + size;
}

/* frame(room, ids, pids, keys, times, payloads): a bytearray of `room` zeros and the body. */
static PyObject *frame(PyObject *module, PyObject *args)
{
    Rows rows;
    Py_ssize_t room, key_size, payload_size;
    PyObject *made = NULL;
    if (rows_of(args, &room, &rows) < 0)
        return NULL;
    int array_width = rows.count < 16 ? 0 : rows.count <= 0xffff ? 2 : 4;
    Py_ssize_t total = room + 1 + array_width;
    for (Py_ssize_t at = 0; at < rows.count; at++) {
        if (text_at(&rows.keys, at, &key_size) == NULL || bytes_at(&rows.payloads, at, &payload_size) == NULL)
            goto end;
        if (!has_room(total, key_size) || !has_room(total, payload_size))
            goto end;
        total += 6 + int_width(int_at(&rows.ids, at)) + int_width(int_at(&rows.pids, at)) +
                 int_width(int_at(&rows.times, at)) + text_width(key_size) + key_size + width_of(payload_size) +
                 payload_size;
    }
    if ((made = PyByteArray_FromStringAndSize(NULL, total)) == NULL)
        goto end;
    char *to = PyByteArray_AsString(made);
    memset(to, 0, room);
    to += room;
    if (array_width == 0)
        *to++ = (char)(0x90 | rows.count);
    else
        to = put(to, 0xdb + rank_of(array_width), rows.count, array_width);
    for (Py_ssize_t at = 0; at < rows.count; at++) {
        const char *key = text_at(&rows.keys, at, &key_size), *payload = bytes_at(&rows.payloads, at, &payload_size);
        *to++ = (char)0x95;
        to = put_int(put_int(to, int_at(&rows.ids, at)), int_at(&rows.pids, at));
        to = put_element(to, 0xd9, text_width(key_size), key, key_size);
        to = put_int(to, int_at(&rows.times, at));
        to = put_element(to, 0xc4, width_of(payload_size), payload, payload_size);
    }
end:
    let_go_rows(&rows);
    return made;
}

/* ---- hashes of keys: XXH3 of 64 bits with a seed, as xxHash specifies it ---- */

#define KEY_BYTES_MAX 240 /* longer ones take another way, which Python has */

static const uint64_t P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9;
static const uint64_t MIX1 = 0x165667919E3779F9, MIX2 = 0x9FB21C651E98DF25;
static const uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

static uint64_t read64(const void *from)
{
    uint64_t value;
    memcpy(&value, from, 8);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? value : __builtin_bswap64(value);
}

static uint32_t read32(const void *from)
{
    uint32_t value;
    memcpy(&value, from, 4);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? value : __builtin_bswap32(value);
}

static uint64_t rotated(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static uint64_t folded(uint64_t one, uint64_t other)
{
    unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t hash)
{
    hash = (hash ^ hash >> 37) * MIX1;
    return hash ^ hash >> 32;
}

static uint64_t mix16(const uint8_t *from, const uint8_t *secret, uint64_t seed)
{
    return folded(read64(from) ^ (read64(secret) + seed), read64(from + 8) ^ (read64(secret + 8) - seed));
}

/* For 1 to KEY_BYTES_MAX bytes. */
static uint64_t hash_of(const uint8_t *from, size_t size, uint64_t seed)
{
    const uint8_t *end = from + size;
    uint64_t hash;
    if (size <= 3) {
        hash = (uint32_t)from[0] << 16 | (uint32_t)from[size >> 1] << 24 | from[size - 1] | (uint32_t)size << 8;
        hash ^= (uint64_t)(read32(SECRET) ^ read32(SECRET + 4)) + seed;
        hash = (hash ^ hash >> 33) * P2;
        hash = (hash ^ hash >> 29) * P3;
        return hash ^ hash >> 32;
    }
    if (size <= 8) {
        seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
        hash = (read32(end - 4) + ((uint64_t)read32(from) << 32)) ^ ((read64(SECRET + 8) ^ read64(SECRET + 16)) - seed);
        hash = (hash ^ rotated(hash, 49) ^ rotated(hash, 24)) * MIX2;
        hash = (hash ^ ((hash >> 35) + size)) * MIX2;
        return hash ^ hash >> 28;
    }
    if (size <= 16) {
        uint64_t low = read64(from) ^ ((read64(SECRET + 24) ^ read64(SECRET + 32)) + seed);
        uint64_t high = read64(end - 8) ^ ((read64(SECRET + 40) ^ read64(SECRET + 48)) - seed);
        return avalanche(size + __builtin_bswap64(low) + high + folded(low, high));
    }
    hash = size * P1;
    if (size <= 128) {
        for (size_t at = (size - 1) / 32 * 16 + 16; at > 0;) {
            at -= 16;
            hash += mix16(from + at, SECRET + 2 * at, seed) + mix16(end - 16 - at, SECRET + 2 * at + 16, seed);
        }
        return avalanche(hash);
    }
    for (size_t at = 0; at < 128; at += 16)
        hash += mix16(from + at, SECRET + at, seed);
    hash = avalanche(hash);
    for (size_t at = 128; at + 16 <= size; at += 16)
        hash += mix16(from + at, SECRET + at - 128 + 3, seed);
    return avalanche(hash + mix16(end - 16, SECRET + 136 - 17, seed));
}

/* hash_keys(keys, seed): their hashes, 8 bytes each; None if one is empty or longer than is done here. */
static PyObject *hash_keys(PyObject *module, PyObject *args)
{
    PyObject *given, *made = NULL;
    unsigned long long seed;
    Items keys;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OK", &given, &seed) || items_of(given, &keys) < 0)
        return NULL;
    made = PyBytes_FromStringAndSize(NULL, keys.count * 8);
    char *to = made == NULL ? NULL : PyBytes_AsString(made);
    for (Py_ssize_t at = 0; to != NULL && at < keys.count; at++, to += 8) {
        const char *key = text_at(&keys, at, &size);
        if (key == NULL || size < 1 || size > KEY_BYTES_MAX) {
            Py_DECREF(made);
            made = key == NULL ? NULL : Py_NewRef(Py_None);
            break;
        }
        uint64_t hash = hash_of((const uint8_t *)key, size, seed);
        memcpy(to, &hash, 8);
    }
    Py_DECREF(keys.held);
    return made;
}

/* ---- the table of hashes: see KeyTable in sequencer/keys/memory.py ---- */

static int get_buffer(PyObject *given, Py_buffer *buffer, int flags, Py_ssize_t itemsize)
{
    if (PyObject_GetBuffer(given, buffer, flags | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
        return -1;
    if (buffer->itemsize == itemsize && (uintptr_t)buffer->buf % itemsize == 0)
        return 0;
    PyErr_SetString(PyExc_TypeError, "a column of another width, or at an even address, was expected");
    PyBuffer_Release(buffer);
    return -1;
}

typedef struct {
    Py_buffer newest, before, tags, hashes;
    uint64_t places, rows;
    Py_ssize_t count;
} Table;

static void let_go_table(Table *table)
{
    Py_buffer *each[] = {&table->newest, &table->before, &table->tags, &table->hashes};
    for (int at = 0; at < 4; at++)
        if (each[at]->obj != NULL)
            PyBuffer_Release(each[at]);
}

static int table_of(PyObject *given[4], int flags, Table *table)
{
    memset(table, 0, sizeof *table);
    if (get_buffer(given[0], &table->newest, flags, 4) == 0 && get_buffer(given[1], &table->before, flags, 4) == 0 &&
        get_buffer(given[2], &table->tags, flags, 4) == 0 && get_buffer(given[3], &table->hashes, 0, 8) == 0) {
        table->places = table->newest.len / 4;
        table->rows = table->before.len / 4;
        table->count = table->hashes.len / 8;
        if (table->places > 0 && table->places <= UINT32_MAX && table->rows > 0 && table->tags.len == table->before.len)
            return 0;
        PyErr_SetString(PyExc_ValueError, "columns of a table were expected");
    }
    let_go_table(table);
    return -1;
}

static uint64_t place_of(const Table *table, uint64_t hash) { return (hash >> 32) * table->places >> 32; }

#define AHEAD 12 /* places fetched ahead of their turn: each is a miss of the cache */

/* add(newest, before, tags, hashes, first): the row number of the first of them is `first`. */
static PyObject *add(PyObject *module, PyObject *args)
{
    PyObject *given[4];
    unsigned long long first;
    Table table;
    if (!PyArg_ParseTuple(args, "OOOOK", &given[0], &given[1], &given[2], &given[3], &first) ||
        table_of(given, PyBUF_WRITABLE, &table) < 0)
        return NULL;
    const uint64_t *hashes = table.hashes.buf;
    uint32_t *newest = table.newest.buf, *before = table.before.buf, *tags = table.tags.buf;
    uint64_t slot = first % table.rows;
    for (Py_ssize_t at = 0; at < table.count; at++) {
        if (at + AHEAD < table.count)
            __builtin_prefetch(&newest[place_of(&table, hashes[at + AHEAD])], 1);
        uint64_t place = place_of(&table, hashes[at]);
        tags[slot] = (uint32_t)hashes[at];
        before[slot] = newest[place];
        newest[place] = (uint32_t)(first + at);
        slot = slot + 1 == table.rows ? 0 : slot + 1;
    }
    let_go_table(&table);
    return Py_NewRef(Py_None);
}

/* find(newest, before, tags, hashes, last, count): where in the columns the rows with the hashes are. */
static PyObject *find(PyObject *module, PyObject *args)
{
    PyObject *given[4], *found;
    unsigned long long last, count;
    Table table;
    if (!PyArg_ParseTuple(args, "OOOOKK", &given[0], &given[1], &given[2], &given[3], &last, &count) ||
        table_of(given, 0, &table) < 0)
        return NULL;
    const uint64_t *hashes = table.hashes.buf;
    const uint32_t *newest = table.newest.buf, *before = table.before.buf, *tags = table.tags.buf;
    found = PyList_New(0);
    if (count > table.rows || count > last)
        count = 0; /* no such table */
    for (Py_ssize_t at = 0; found != NULL && at < table.count; at++) {
        if (at + AHEAD < table.count)
            __builtin_prefetch(&newest[place_of(&table, hashes[at + AHEAD])]);
        /* A number comes again after 2^32 rows: a chain leads to older rows alone. */
        int64_t age = -1;
        uint32_t row = newest[place_of(&table, hashes[at])];
        for (uint32_t older; older = (uint32_t)last - row, older < count && (int64_t)older > age; age = older) {
            uint64_t slot = (last - older) % table.rows;
            if (tags[slot] == (uint32_t)hashes[at]) {
                PyObject *value = PyLong_FromUnsignedLongLong(slot);
                if (value == NULL || PyList_Append(found, value) < 0)
                    Py_CLEAR(found);
                Py_XDECREF(value);
                if (found == NULL)
                    break;
            }
            row = before[slot];
        }
    }
    let_go_table(&table);
    return found;
}

/* are_distinct(hashes): whether no two are equal. */
static PyObject *are_distinct(PyObject *module, PyObject *given)
{
    Py_buffer buffer;
    if (get_buffer(given, &buffer, 0, 8) < 0)
        return NULL;
    const uint64_t *hashes = buffer.buf;
    Py_ssize_t count = buffer.len / 8;
    uint64_t mask = 15;
    while (mask < 2 * (uint64_t)count)
        mask = 2 * mask + 1;
    uint64_t *seen = PyMem_Calloc(mask + 1, 8);
    int has_zero = 0, is_good = seen != NULL;
    for (Py_ssize_t at = 0; is_good && at < count; at++) {
        uint64_t hash = hashes[at], place = (hash ^ hash >> 32) & mask;
        if (hash == 0)
            is_good = !has_zero++;
        for (; hash != 0 && is_good && seen[place] != 0; place = (place + 1) & mask)
            is_good = seen[place] != hash;
        if (hash != 0)
            seen[place] = hash;
    }
    PyBuffer_Release(&buffer);
    if (seen == NULL)
        return PyErr_NoMemory();
    PyMem_Free(seen);
    return PyBool_FromLong(is_good);
}

/* ---- the forms of keys ---- */

/* The bytes of `client` in the key client#number, whose number is then set; 0 for another key. */
static Py_ssize_t split_key(const char *key, Py_ssize_t size, int64_t *number)
{
    Py_ssize_t at = size;
    while (at > 0 && key[at - 1] >= '0' && key[at - 1] <= '9')
        at--;
    Py_ssize_t digits = size - at;
    if (at < 2 || key[at - 1] != '#' || digits < 1 || digits > 19 || (key[at] == '0' && digits > 1))
        return 0;
    uint64_t value = 0;
    for (; at < size; at++)
        value = value * 10 + (uint64_t)(key[at] - '0');
    *number = (int64_t)value;
    return value > INT64_MAX ? 0 : size - digits - 1;
}

/* Notes a client's next number in both dictionaries; 0 if it does not rise, -1 with an error. */
static int note(PyObject *firsts, PyObject *lasts, PyObject *client, int64_t number, Py_ssize_t index)
{
    PyObject *known = PyDict_GetItemWithError(lasts, client), *end;
    if (known == NULL && PyErr_Occurred())
        return -1;
    if (known != NULL && PyLong_AsLongLong(PyTuple_GetItem(known, 0)) >= number)
        return 0;
    if ((end = Py_BuildValue("Ln", (long long)number, index)) == NULL)
        return -1;
    int result = PyDict_SetItem(lasts, client, end);
    if (result == 0 && known == NULL)
        result = PyDict_SetItem(firsts, client, PyTuple_GetItem(end, 0));
    Py_DECREF(end);
    return result < 0 ? -1 : 1;
}

/* forms(keys): (indexes of the free-form keys, or None for all; first numbers; last numbers and indexes), by client;
 * None if the numbers of a client do not rise. */
static PyObject *forms(PyObject *module, PyObject *given)
{
    Items keys;
    if (items_of(given, &keys) < 0)
        return NULL;
    PyObject *free_ = PyList_New(0), *firsts = PyDict_New(), *lasts = PyDict_New(), *found = NULL;
    int state = free_ != NULL && firsts != NULL && lasts != NULL ? 1 : -1;
    Py_ssize_t rising = 0;
    for (Py_ssize_t at = 0; state == 1 && at < keys.count; at++) {
        int64_t number;
        Py_ssize_t size;
        const char *key = text_at(&keys, at, &size);
        Py_ssize_t client_size = key == NULL ? 0 : split_key(key, size, &number);
        PyObject *part = NULL;
        if (key == NULL)
            state = -1;
        else if (client_size == 0 && rising > 0) {
            part = PyLong_FromSsize_t(at);
            state = part == NULL || PyList_Append(free_, part) < 0 ? -1 : 1;
        } else if (client_size > 0) {
            for (Py_ssize_t before = 0; rising == 0 && state == 1 && before < at; before++) {
                PyObject *index = PyLong_FromSsize_t(before);
                state = index == NULL || PyList_Append(free_, index) < 0 ? -1 : 1;
                Py_XDECREF(index);
            }
            rising++;
            part = PyUnicode_DecodeUTF8(key, client_size, NULL);
            if (state == 1)
                state = part == NULL ? -1 : note(firsts, lasts, part, number, at);
        }
        Py_XDECREF(part);
    }
    if (state == 1)
        found = PyTuple_Pack(3, rising == 0 ? Py_None : free_, firsts, lasts);
    else if (state == 0)
        found = Py_NewRef(Py_None);
    Py_XDECREF(free_);
    Py_XDECREF(firsts);
    Py_XDECREF(lasts);
    Py_DECREF(keys.held);
    return found;
}

static PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, NULL},
    {"are_distinct", are_distinct, METH_O, NULL},
    {"checked", checked, METH_VARARGS, NULL},
    {"find", find, METH_VARARGS, NULL},
    {"forms", forms, METH_O, NULL},
    {"frame", frame, METH_VARARGS, NULL},
    {"hash_keys", hash_keys, METH_VARARGS, NULL},
    {"images", images, METH_VARARGS, NULL},
    {"taken_apart", taken_apart, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "orderchain_speed", NULL, -1, methods};

PyMODINIT_FUNC PyInit_orderchain_speed(void)
{
    const char *of[] = {"key", "payload", "event_time_ns"};
    for (int at = 0; at < 3; at++)
        if (names[at] == NULL && (names[at] = PyUnicode_InternFromString(of[at])) == NULL)
            return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "API", 1) < 0)
        Py_CLEAR(module);
    return module;
}
