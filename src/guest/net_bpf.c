#include "guest/net_bpf.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "wire/net.h"

/* All programs here are below a hundred instructions. */
#define PROGRAM_MAX 128
#define LABELS_MAX 8
#define PAGE_BYTES 4096u
#define DNS_PORT 53
/* Every record of a ring buffer begins with two u32: its length and flags, and a page number. */
#define RING_HEADER_BYTES 8u

_Static_assert(sizeof(struct net_tuple) == 36, "the filter writes it field by field");
_Static_assert(sizeof(struct net_syn) == 96, "the filter writes it field by field");

/*
 * Instructions as bpf(2) takes them. The kernel's ISA is described in its
 * Documentation/bpf/instruction-set.rst: class, operation and source of the operand in one code.
 */
#define INSN(code_, dst, src, off_, imm_)                                                          \
	((struct bpf_insn){.code = (code_),                                                        \
			   .dst_reg = (dst)&15,                                                    \
			   .src_reg = (src)&15,                                                    \
			   .off = (int16_t)(off_),                                                 \
			   .imm = (int32_t)(imm_)})
#define MOVE(dst, src) INSN(BPF_ALU64 | BPF_MOV | BPF_X, dst, src, 0, 0)
#define SET(dst, imm) INSN(BPF_ALU64 | BPF_MOV | BPF_K, dst, 0, 0, imm)
#define ADD(dst, imm) INSN(BPF_ALU64 | BPF_ADD | BPF_K, dst, 0, 0, imm)
#define AND(dst, imm) INSN(BPF_ALU64 | BPF_AND | BPF_K, dst, 0, 0, imm)
#define OR(dst, src) INSN(BPF_ALU64 | BPF_OR | BPF_X, dst, src, 0, 0)
#define SHIFT_LEFT(dst, imm) INSN(BPF_ALU64 | BPF_LSH | BPF_K, dst, 0, 0, imm)
#define SHIFT_RIGHT(dst, imm) INSN(BPF_ALU64 | BPF_RSH | BPF_K, dst, 0, 0, imm)
#define LOAD(size, dst, src, off) INSN(BPF_LDX | BPF_MEM | (size), dst, src, off, 0)
#define STORE(size, dst, off, src) INSN(BPF_STX | BPF_MEM | (size), dst, src, off, 0)
#define STORE_VALUE(size, dst, off, imm) INSN(BPF_ST | BPF_MEM | (size), dst, 0, off, imm)
/* A map's address fills two places; load() puts the descriptor in. */
#define LOAD_MAP(dst, map)                                                                         \
	INSN(BPF_LD | BPF_DW | BPF_IMM, dst, BPF_PSEUDO_MAP_FD, 0, map), INSN(0, 0, 0, 0, 0)
#define CALL(function) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, function)
#define EXIT INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
/* A jump names a label; assemble() puts the distance in its place. */
#define JUMP(label) INSN(BPF_JMP | BPF_JA, 0, 0, label, 0)
#define JUMP_IF(operation, dst, imm, label) INSN(BPF_JMP | (operation) | BPF_K, dst, 0, label, imm)
/* No instruction has this code. */
#define LABEL_CODE 0xff
#define LABEL(label) INSN(LABEL_CODE, 0, 0, 0, label)

/* R0 is a call's result, R1 to R5 are its arguments and lost by it, R6 to R9 are kept, R10 is the
 * end of 512 bytes of stack. */
enum { R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 };

/* ::ffff:0:0/96, bytes 8 to 11 as a word in memory's order. */
#define MAPPED_WORD 0xffff0000u

/* Maps, as the programs name them. */
enum { MAP_SOCKETS, MAP_OWN, MAP_RELEASED, MAP_HELD, MAPS };

/*
 * Whose is a packet that no connection owns? The address that it is for is looked at, not whether a
 * program listens: a server on 0.0.0.0 must not be given what is meant for the world.
 */
enum { LOOKUP_PASS, LOOKUP_IPV6, LOOKUP_OWN, LOOKUP_SEGMENT, LOOKUP_GIVE };
/* On the stack: the address, 16 bytes; then the place of a socket. */
enum { LOOKUP_KEY = -16, LOOKUP_PLACE = -20 };

static const struct bpf_insn lookup_program[] = {
	MOVE(R6, R1),
	LOAD(BPF_W, R2, R6, offsetof(struct bpf_sk_lookup, family)),
	JUMP_IF(BPF_JEQ, R2, AF_INET6, LOOKUP_IPV6),

	/* IPv4: 0/8, 127/8, multicast and what is behind it stay inside. */
	LOAD(BPF_W, R2, R6, offsetof(struct bpf_sk_lookup, local_ip4)),
	STORE_VALUE(BPF_DW, R10, LOOKUP_KEY, 0),
	STORE_VALUE(BPF_W, R10, LOOKUP_KEY + 8, MAPPED_WORD),
	STORE(BPF_W, R10, LOOKUP_KEY + 12, R2),
	AND(R2, 0xff),
	JUMP_IF(BPF_JEQ, R2, 0, LOOKUP_PASS),
	JUMP_IF(BPF_JEQ, R2, 127, LOOKUP_PASS),
	JUMP_IF(BPF_JGE, R2, 224, LOOKUP_PASS),
	JUMP(LOOKUP_OWN),

	/* IPv6: ::/96 (with ::1), fe80::/10 and ff00::/8 stay inside. */
	LABEL(LOOKUP_IPV6),
	LOAD(BPF_W, R2, R6, offsetof(struct bpf_sk_lookup, local_ip6[0])),
	LOAD(BPF_W, R3, R6, offsetof(struct bpf_sk_lookup, local_ip6[1])),
	LOAD(BPF_W, R4, R6, offsetof(struct bpf_sk_lookup, local_ip6[2])),
	LOAD(BPF_W, R5, R6, offsetof(struct bpf_sk_lookup, local_ip6[3])),
	STORE(BPF_W, R10, LOOKUP_KEY, R2),
	STORE(BPF_W, R10, LOOKUP_KEY + 4, R3),
	STORE(BPF_W, R10, LOOKUP_KEY + 8, R4),
	STORE(BPF_W, R10, LOOKUP_KEY + 12, R5),
	OR(R3, R2),
	OR(R3, R4),
	JUMP_IF(BPF_JEQ, R3, 0, LOOKUP_PASS),
	MOVE(R3, R2),
	AND(R3, 0xff),
	JUMP_IF(BPF_JEQ, R3, 0xff, LOOKUP_PASS),
	AND(R2, 0xc0ff),
	JUMP_IF(BPF_JEQ, R2, 0x80fe, LOOKUP_PASS),

	LABEL(LOOKUP_OWN),
	LOAD_MAP(R1, MAP_OWN),
	MOVE(R2, R10),
	ADD(R2, LOOKUP_KEY),
	CALL(BPF_FUNC_map_lookup_elem),
	JUMP_IF(BPF_JNE, R0, 0, LOOKUP_PASS),

	LOAD(BPF_W, R2, R6, offsetof(struct bpf_sk_lookup, protocol)),
	LOAD(BPF_W, R3, R6, offsetof(struct bpf_sk_lookup, local_port)),
	JUMP_IF(BPF_JEQ, R2, IPPROTO_TCP, LOOKUP_SEGMENT),
	JUMP_IF(BPF_JNE, R2, IPPROTO_UDP, LOOKUP_PASS),
	JUMP_IF(BPF_JNE, R3, DNS_PORT, LOOKUP_PASS),
	STORE_VALUE(BPF_W, R10, LOOKUP_PLACE, NET_SOCKET_UDP),
	JUMP(LOOKUP_GIVE),
	LABEL(LOOKUP_SEGMENT),
	STORE_VALUE(BPF_W, R10, LOOKUP_PLACE, NET_SOCKET_TCP),
	JUMP_IF(BPF_JNE, R3, DNS_PORT, LOOKUP_GIVE),
	STORE_VALUE(BPF_W, R10, LOOKUP_PLACE, NET_SOCKET_DNS),

	LABEL(LOOKUP_GIVE),
	LOAD_MAP(R1, MAP_SOCKETS),
	MOVE(R2, R10),
	ADD(R2, LOOKUP_PLACE),
	CALL(BPF_FUNC_map_lookup_elem),
	JUMP_IF(BPF_JEQ, R0, 0, LOOKUP_PASS),
	MOVE(R7, R0),
	MOVE(R1, R6),
	MOVE(R2, R7),
	SET(R3, 0),
	CALL(BPF_FUNC_sk_assign),
	MOVE(R1, R7),
	CALL(BPF_FUNC_sk_release),

	LABEL(LOOKUP_PASS),
	SET(R0, SK_PASS),
	EXIT,
};

/* Runs for each segment that the listener, or a connection of it, gets; begins at TCP's header. */
enum { FILTER_PASS, FILTER_IPV6, FILTER_ADDRESSES };
/* On the stack: a few bytes; then a struct net_syn. */
enum { FILTER_BYTES = -8, FILTER_SYN = -8 - (int)sizeof(struct net_syn) };
enum {
	FILTER_SOURCE = FILTER_SYN + (int)offsetof(struct net_syn, tuple.source),
	FILTER_DESTINATION = FILTER_SYN + (int)offsetof(struct net_syn, tuple.destination),
	FILTER_PORTS = FILTER_SYN + (int)offsetof(struct net_syn, tuple.source_port),
	FILTER_TCP = FILTER_SYN + (int)offsetof(struct net_syn, tcp),
};

static const struct bpf_insn filter_program[] = {
	MOVE(R6, R1),
	/* Where data begins, and the flags. */
	SET(R2, 12),
	MOVE(R3, R10),
	ADD(R3, FILTER_BYTES),
	SET(R4, 2),
	CALL(BPF_FUNC_skb_load_bytes),
	JUMP_IF(BPF_JNE, R0, 0, FILTER_PASS),
	/* Of FILTER_SYN, RST and ACK only FILTER_SYN: the first segment of a connection. */
	LOAD(BPF_B, R2, R10, FILTER_BYTES + 1),
	AND(R2, 0x16),
	JUMP_IF(BPF_JNE, R2, 0x02, FILTER_PASS),
	LOAD(BPF_B, R7, R10, FILTER_BYTES),
	SHIFT_RIGHT(R7, 4),
	SHIFT_LEFT(R7, 2),
	JUMP_IF(BPF_JLT, R7, 20, FILTER_PASS),
	JUMP_IF(BPF_JGT, R7, NET_TCP_HEADER_MAX, FILTER_PASS),

	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 0, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 8, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 16, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 24, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 32, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 40, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 48, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 56, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 64, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 72, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 80, 0),
	STORE_VALUE(BPF_DW, R10, FILTER_SYN + 88, 0),

	/* The version of IP. */
	MOVE(R1, R6),
	SET(R2, 0),
	MOVE(R3, R10),
	ADD(R3, FILTER_BYTES),
	SET(R4, 1),
	SET(R5, BPF_HDR_START_NET),
	CALL(BPF_FUNC_skb_load_bytes_relative),
	JUMP_IF(BPF_JNE, R0, 0, FILTER_PASS),
	LOAD(BPF_B, R2, R10, FILTER_BYTES),
	SHIFT_RIGHT(R2, 4),
	JUMP_IF(BPF_JEQ, R2, 6, FILTER_IPV6),

	STORE_VALUE(BPF_W, R10, FILTER_SOURCE + 8, MAPPED_WORD),
	STORE_VALUE(BPF_W, R10, FILTER_DESTINATION + 8, MAPPED_WORD),
	MOVE(R1, R6),
	SET(R2, 12),
	MOVE(R3, R10),
	ADD(R3, FILTER_SOURCE + 12),
	SET(R4, 4),
	SET(R5, BPF_HDR_START_NET),
	CALL(BPF_FUNC_skb_load_bytes_relative),
	JUMP_IF(BPF_JNE, R0, 0, FILTER_PASS),
	MOVE(R1, R6),
	SET(R2, 16),
	MOVE(R3, R10),
	ADD(R3, FILTER_DESTINATION + 12),
	SET(R4, 4),
	SET(R5, BPF_HDR_START_NET),
	CALL(BPF_FUNC_skb_load_bytes_relative),
	JUMP_IF(BPF_JNE, R0, 0, FILTER_PASS),
	JUMP(FILTER_ADDRESSES),

	/* Source and destination stand side by side here too. */
	LABEL(FILTER_IPV6),
	MOVE(R1, R6),
	SET(R2, 8),
	MOVE(R3, R10),
	ADD(R3, FILTER_SOURCE),
	SET(R4, 32),
	SET(R5, BPF_HDR_START_NET),
	CALL(BPF_FUNC_skb_load_bytes_relative),
	JUMP_IF(BPF_JNE, R0, 0, FILTER_PASS),

	LABEL(FILTER_ADDRESSES),
	MOVE(R1, R6),
	SET(R2, 0),
	MOVE(R3, R10),
	ADD(R3, FILTER_TCP),
	MOVE(R4, R7),
	CALL(BPF_FUNC_skb_load_bytes),
	JUMP_IF(BPF_JNE, R0, 0, FILTER_PASS),
	/* Both ports. */
	LOAD(BPF_W, R2, R10, FILTER_TCP),
	STORE(BPF_W, R10, FILTER_PORTS, R2),

	LOAD_MAP(R1, MAP_RELEASED),
	MOVE(R2, R10),
	ADD(R2, FILTER_SYN),
	CALL(BPF_FUNC_map_lookup_elem),
	JUMP_IF(BPF_JNE, R0, 0, FILTER_PASS),
	LOAD_MAP(R1, MAP_HELD),
	MOVE(R2, R10),
	ADD(R2, FILTER_SYN),
	SET(R3, sizeof(struct net_syn)),
	SET(R4, 0),
	CALL(BPF_FUNC_ringbuf_output),
	SET(R0, 0),
	EXIT,

	/* As many bytes as there are. */
	LABEL(FILTER_PASS),
	SET(R0, -1),
	EXIT,
};

static int bpf(int command, union bpf_attr *attributes)
{
	long rc = syscall(SYS_bpf, command, attributes, sizeof(*attributes));

	return rc < 0 ? -errno : (int)rc;
}

static bool is_jump(const struct bpf_insn *insn)
{
	unsigned operation = BPF_OP(insn->code);

	return BPF_CLASS(insn->code) == BPF_JMP && operation != BPF_CALL && operation != BPF_EXIT;
}

/* Takes the labels out and gives the jumps their distances. Returns the number of
 * instructions. */
static unsigned assemble(const struct bpf_insn *source, size_t count, struct bpf_insn *out)
{
	int places[LABELS_MAX] = {0};
	unsigned size = 0;

	ASSERT(count <= PROGRAM_MAX);
	for (size_t i = 0; i < count; i++) {
		if (source[i].code == LABEL_CODE) {
			ASSERT(source[i].imm >= 0 && source[i].imm < LABELS_MAX);
			places[source[i].imm] = (int)size;
		} else {
			out[size++] = source[i];
		}
	}
	for (unsigned i = 0; i < size; i++) {
		if (is_jump(&out[i])) {
			/* Backwards would be a label that there is not. */
			ASSERT(places[out[i].off] > (int)i);
			out[i].off = (int16_t)(places[out[i].off] - (int)i - 1);
		}
	}
	return size;
}

static int load(const struct net_bpf *bpf_maps, enum bpf_prog_type type,
		enum bpf_attach_type attach_type, const struct bpf_insn *source, size_t count)
{
	const int map_fds[MAPS] = {
		[MAP_SOCKETS] = bpf_maps->sockets_fd,
		[MAP_OWN] = bpf_maps->own_fd,
		[MAP_RELEASED] = bpf_maps->released_fd,
		[MAP_HELD] = bpf_maps->held_fd,
	};
	struct bpf_insn program[PROGRAM_MAX];
	union bpf_attr attributes;
	unsigned size = assemble(source, count, program);

	for (unsigned i = 0; i < size; i++) {
		if (program[i].code == (BPF_LD | BPF_DW | BPF_IMM)) {
			program[i].imm = map_fds[program[i].imm];
		}
	}
	memset(&attributes, 0, sizeof(attributes));
	attributes.prog_type = type;
	attributes.expected_attach_type = attach_type;
	attributes.insn_cnt = size;
	attributes.insns = (uint64_t)(uintptr_t)program;
	/* No function that is called is kept for programs of one license. */
	attributes.license = (uint64_t)(uintptr_t) "";
	return bpf(BPF_PROG_LOAD, &attributes);
}

static int make_map(enum bpf_map_type type, uint32_t key_size, uint32_t value_size, uint32_t count)
{
	union bpf_attr attributes;

	memset(&attributes, 0, sizeof(attributes));
	attributes.map_type = type;
	attributes.key_size = key_size;
	attributes.value_size = value_size;
	attributes.max_entries = count;
	return bpf(BPF_MAP_CREATE, &attributes);
}

static int attach(int program_fd)
{
	_cleanup_close_ int namespace_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	union bpf_attr attributes;

	if (namespace_fd < 0) {
		return -errno;
	}
	memset(&attributes, 0, sizeof(attributes));
	attributes.link_create.prog_fd = (uint32_t)program_fd;
	attributes.link_create.target_fd = (uint32_t)namespace_fd;
	attributes.link_create.attach_type = BPF_SK_LOOKUP;
	return bpf(BPF_LINK_CREATE, &attributes);
}

static int open_maps(struct net_bpf *bpf)
{
	const struct {
		int *fd;
		enum bpf_map_type type;
		uint32_t key_size, value_size, count;
	} maps[] = {
		{&bpf->sockets_fd, BPF_MAP_TYPE_SOCKMAP, 4, 8, NET_SOCKETS},
		{&bpf->own_fd, BPF_MAP_TYPE_HASH, 16, 4, NET_OWN_MAX},
		{&bpf->released_fd, BPF_MAP_TYPE_HASH, sizeof(struct net_tuple), 4,
		 NET_STREAMS_MAX},
		{&bpf->held_fd, BPF_MAP_TYPE_RINGBUF, 0, 0, NET_RING_BYTES},
	};

	for (size_t i = 0; i < ARRAY_SIZE(maps); i++) {
		*maps[i].fd =
			make_map(maps[i].type, maps[i].key_size, maps[i].value_size, maps[i].count);
		if (*maps[i].fd < 0) {
			return *maps[i].fd;
		}
	}
	return 0;
}

int net_bpf_open(struct net_bpf *ret_bpf, struct err *err)
{
	_cleanup_close_ int lookup_fd = -EBADF;
	struct net_bpf *bpf = ret_bpf;
	int rc;

	*bpf = (struct net_bpf)NET_BPF_NONE;
	rc = open_maps(bpf);
	if (rc < 0) {
		return err_set(err, rc, "network", "cannot make the network's BPF maps: %s",
			       strerrordesc_np(-rc));
	}
	bpf->filter_fd = load(bpf, BPF_PROG_TYPE_SOCKET_FILTER, 0, filter_program,
			      ARRAY_SIZE(filter_program));
	lookup_fd = load(bpf, BPF_PROG_TYPE_SK_LOOKUP, BPF_SK_LOOKUP, lookup_program,
			 ARRAY_SIZE(lookup_program));
	if (bpf->filter_fd < 0 || lookup_fd < 0) {
		rc = bpf->filter_fd < 0 ? bpf->filter_fd : lookup_fd;
		return err_set(err, rc, "network", "cannot load the network's BPF programs: %s",
			       strerrordesc_np(-rc));
	}
	bpf->link_fd = attach(lookup_fd);
	if (bpf->link_fd < 0) {
		return err_set(err, bpf->link_fd, "network",
			       "cannot attach the network's BPF program: %s",
			       strerrordesc_np(-bpf->link_fd));
	}
	return 0;
}

static int change(int map_fd, const void *key, const void *value)
{
	union bpf_attr attributes;

	memset(&attributes, 0, sizeof(attributes));
	attributes.map_fd = (uint32_t)map_fd;
	attributes.key = (uint64_t)(uintptr_t)key;
	attributes.value = (uint64_t)(uintptr_t)value;
	return bpf(value ? BPF_MAP_UPDATE_ELEM : BPF_MAP_DELETE_ELEM, &attributes);
}

int net_bpf_put_socket(const struct net_bpf *bpf, enum net_socket place, int fd)
{
	uint32_t key = place;
	uint64_t value = (uint64_t)fd;

	return change(bpf->sockets_fd, &key, &value);
}

static const uint32_t present = 1;

int net_bpf_own(const struct net_bpf *bpf, const uint8_t *address, bool own)
{
	return change(bpf->own_fd, address, own ? &present : NULL);
}

int net_bpf_release(const struct net_bpf *bpf, const struct net_tuple *tuple, bool pass)
{
	return change(bpf->released_fd, tuple, pass ? &present : NULL);
}

static void empty(int map_fd)
{
	union bpf_attr attributes;
	struct net_tuple key;

	for (;;) {
		memset(&attributes, 0, sizeof(attributes));
		attributes.map_fd = (uint32_t)map_fd;
		attributes.next_key = (uint64_t)(uintptr_t)&key;
		/* Without a key to go on from: the first. */
		if (bpf(BPF_MAP_GET_NEXT_KEY, &attributes) < 0 || change(map_fd, &key, NULL) < 0) {
			return;
		}
	}
}

void net_bpf_forget(const struct net_bpf *bpf)
{
	empty(bpf->own_fd);
	empty(bpf->released_fd);
}

/* ---- The ring buffer ---- */

static _Atomic(uint64_t) *position(uint8_t *page)
{
	return (_Atomic(uint64_t) *)(void *)page;
}

int net_ring_open(const struct net_bpf *bpf, struct net_ring *ret_ring)
{
	void *consumer, *producer;

	consumer = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, bpf->held_fd, 0);
	if (consumer == MAP_FAILED) {
		return -errno;
	}
	producer = mmap(NULL, PAGE_BYTES + 2 * NET_RING_BYTES, PROT_READ, MAP_SHARED, bpf->held_fd,
			PAGE_BYTES);
	if (producer == MAP_FAILED) {
		int rc = -errno;

		munmap(consumer, PAGE_BYTES);
		return rc;
	}
	*ret_ring = (struct net_ring){.consumer = consumer, .producer = producer};
	atomic_store(position(ret_ring->consumer), atomic_load(position(ret_ring->producer)));
	return 0;
}

void net_ring_close(struct net_ring *ring)
{
	if (ring->consumer) {
		munmap(ring->consumer, PAGE_BYTES);
		munmap(ring->producer, PAGE_BYTES + 2 * NET_RING_BYTES);
		*ring = (struct net_ring){.consumer = NULL};
	}
}

bool net_ring_next(struct net_ring *ring, struct net_syn *ret_syn)
{
	uint64_t start = atomic_load(position(ring->consumer));

	while (start < atomic_load(position(ring->producer))) {
		uint8_t *record = ring->producer + PAGE_BYTES + start % NET_RING_BYTES;
		uint32_t head = atomic_load((_Atomic(uint32_t) *)(void *)record);
		uint32_t length = head & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
		bool whole = length == sizeof(*ret_syn) && !(head & BPF_RINGBUF_DISCARD_BIT);

		if (head & BPF_RINGBUF_BUSY_BIT) {
			return false;
		}
		if (whole) {
			memcpy(ret_syn, record + RING_HEADER_BYTES, sizeof(*ret_syn));
		}
		start += (RING_HEADER_BYTES + length + 7u) & ~7u;
		atomic_store(position(ring->consumer), start);
		if (whole) {
			return true;
		}
	}
	return false;
}
