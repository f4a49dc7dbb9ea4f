// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * libxdp as C programs use it: its inline ring functions in the loops that xdpsock made the usual ones
 * (peek, a loop over the packets, release), written anew. Three ways of each:
 *
 *   plain  what the ring functions alone cost
 *   books  with the books that xdpsock keeps: counters, outstanding frames, the wake-up flags
 *   slices with descriptors copied out of the ring in two slices first, which nobody does in C
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xdp/xsk.h>

#define MOST 256
#define CHUNK 4096
#define MASK (~((__u64)CHUNK - 1))

struct sum {
	__u64 count;
	__u64 addresses;
	__u64 lengths;
};

struct peer {
	struct xsk_ring_prod fill;
	struct xsk_ring_prod tx;
	struct xsk_ring_cons rx;
	struct xsk_ring_cons completion;
	struct xsk_umem *umem;
	struct xsk_socket *socket;
	/* The books. */
	__u64 rx_packets;
	__u64 tx_packets;
	__u64 wakeups;
	__u32 outstanding;
	/* Frames to send from: last in, first out. */
	__u32 free;
	__u64 frames[];
};

struct options {
	const char *interface;
	__u32 queue;
	__u32 frames;
	__u32 ring;
	int rx;
	int tx;
};

/* What has to be called; the benchmark counts that it is not, or counts it. */
extern void peer_wake_tx(int fd);
extern void peer_wake_rx(int fd);

void peer_close(struct peer *peer)
{
	if (peer->socket)
		xsk_socket__delete(peer->socket);
	if (peer->umem)
		xsk_umem__delete(peer->umem);
	free(peer);
}

/* A socket on its queue, in copy mode; for one that receives, all frames are in the Fill ring. */
int peer_open(struct peer **out, void *area, const struct options *options)
{
	struct xsk_umem_config umem = {
		.fill_size = options->ring,
		.comp_size = options->ring,
		.frame_size = CHUNK,
	};
	struct xsk_socket_config socket = {
		.rx_size = options->rx ? options->ring : 0,
		.tx_size = options->tx ? options->ring : 0,
		.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
		.bind_flags = XDP_COPY | XDP_USE_NEED_WAKEUP,
	};
	struct peer *peer = calloc(1, sizeof(*peer) + options->frames * sizeof(__u64));
	__u32 at, i;
	int error;

	if (!peer)
		return -ENOMEM;
	error = xsk_umem__create(&peer->umem, area, (__u64)options->frames * CHUNK, &peer->fill,
				 &peer->completion, &umem);
	if (!error)
		error = xsk_socket__create(&peer->socket, options->interface, options->queue,
					   peer->umem, options->rx ? &peer->rx : NULL,
					   options->tx ? &peer->tx : NULL, &socket);
	if (error) {
		peer_close(peer);
		return error;
	}
	if (options->rx) {
		if (xsk_ring_prod__reserve(&peer->fill, options->frames, &at) != options->frames) {
			peer_close(peer);
			return -ENOSPC;
		}
		for (i = 0; i < options->frames; i++)
			*xsk_ring_prod__fill_addr(&peer->fill, at + i) = (__u64)i * CHUNK;
		xsk_ring_prod__submit(&peer->fill, options->frames);
	} else {
		for (i = 0; i < options->frames; i++)
			peer->frames[peer->free++] = (__u64)(options->frames - 1 - i) * CHUNK;
	}
	*out = peer;
	return 0;
}

int peer_fd(const struct peer *peer)
{
	return xsk_socket__fd(peer->socket);
}

static inline __attribute__((always_inline)) void add(struct sum *sum, __u64 address, __u32 length)
{
	sum->count++;
	sum->addresses += address;
	sum->lengths += length;
}

/* Fill -> RX: every packet is looked at and its frame given back. */
static inline __attribute__((always_inline)) __u32 receive(struct peer *peer, __u32 batch,
							   struct sum *out, int books)
{
	struct sum sum = *out;
	__u32 rx, fill, count, i;

	count = xsk_ring_cons__peek(&peer->rx, batch, &rx);
	if (!count) {
		if (books && xsk_ring_prod__needs_wakeup(&peer->fill))
			peer_wake_rx(peer_fd(peer));
		return 0;
	}
	while (xsk_ring_prod__reserve(&peer->fill, count, &fill) != count) {
		if (books && xsk_ring_prod__needs_wakeup(&peer->fill))
			peer_wake_rx(peer_fd(peer));
	}
	for (i = 0; i < count; i++) {
		__u64 address = xsk_ring_cons__rx_desc(&peer->rx, rx + i)->addr;
		__u32 length = xsk_ring_cons__rx_desc(&peer->rx, rx + i)->len;

		add(&sum, address, length);
		*xsk_ring_prod__fill_addr(&peer->fill, fill + i) = address & MASK;
	}
	xsk_ring_prod__submit(&peer->fill, count);
	xsk_ring_cons__release(&peer->rx, count);
	if (books)
		peer->rx_packets += count;
	*out = sum;
	return count;
}

__u32 peer_receive(struct peer *peer, __u32 batch, struct sum *sum)
{
	return receive(peer, batch, sum, 0);
}

__u32 peer_receive_books(struct peer *peer, __u32 batch, struct sum *sum)
{
	return receive(peer, batch, sum, 1);
}

/* Has the kernel send what is out, and looks at what it has sent. */
static inline __attribute__((always_inline)) __u32 peek_sent(struct peer *peer, __u32 batch,
							     __u32 *completion, int books)
{
	if (books && !peer->outstanding)
		return 0;
	if (books && xsk_ring_prod__needs_wakeup(&peer->tx)) {
		peer->wakeups++;
		peer_wake_tx(peer_fd(peer));
	}
	return xsk_ring_cons__peek(&peer->completion, batch, completion);
}

/* Sent frames back to the free ones. */
static inline __attribute__((always_inline)) __u32 reap(struct peer *peer, __u32 batch, int books)
{
	__u32 completion, i, count = peek_sent(peer, batch, &completion, books);

	if (!count)
		return 0;
	for (i = 0; i < count; i++)
		peer->frames[peer->free++] =
			*xsk_ring_cons__comp_addr(&peer->completion, completion + i) & MASK;
	xsk_ring_cons__release(&peer->completion, count);
	if (books)
		peer->outstanding -= count;
	return count;
}

/* TX -> completion: a batch out of free frames, then what has been sent back to them. */
static inline __attribute__((always_inline)) __u32 transmit(struct peer *peer, __u32 batch,
							    __u32 length, struct sum *out, int books)
{
	struct sum sum = *out;
	__u32 tx, i, count = batch < peer->free ? batch : peer->free;

	if (count && xsk_ring_prod__reserve(&peer->tx, count, &tx) == count) {
		for (i = 0; i < count; i++) {
			struct xdp_desc *desc = xsk_ring_prod__tx_desc(&peer->tx, tx + i);

			desc->addr = peer->frames[--peer->free];
			desc->len = length;
			desc->options = 0;
			add(&sum, desc->addr, desc->len);
		}
		xsk_ring_prod__submit(&peer->tx, count);
		if (books) {
			peer->tx_packets += count;
			peer->outstanding += count;
		}
	} else {
		count = 0;
	}
	reap(peer, batch, books);
	*out = sum;
	return count;
}

__u32 peer_transmit(struct peer *peer, __u32 batch, __u32 length, struct sum *sum)
{
	return transmit(peer, batch, length, sum, 0);
}

__u32 peer_transmit_books(struct peer *peer, __u32 batch, __u32 length, struct sum *sum)
{
	return transmit(peer, batch, length, sum, 1);
}

/* Sent frames back to the kernel, to receive into. */
static inline __attribute__((always_inline)) void refill(struct peer *peer, __u32 batch, int books)
{
	__u32 completion, fill, i, count = peek_sent(peer, batch, &completion, books);

	if (!count)
		return;
	while (xsk_ring_prod__reserve(&peer->fill, count, &fill) != count) {
		if (books && xsk_ring_prod__needs_wakeup(&peer->fill))
			peer_wake_rx(peer_fd(peer));
	}
	for (i = 0; i < count; i++)
		*xsk_ring_prod__fill_addr(&peer->fill, fill + i) =
			*xsk_ring_cons__comp_addr(&peer->completion, completion + i) & MASK;
	xsk_ring_prod__submit(&peer->fill, count);
	xsk_ring_cons__release(&peer->completion, count);
	if (books)
		peer->outstanding -= count;
}

/* RX -> TX -> completion -> Fill. */
static inline __attribute__((always_inline)) __u32 forward(struct peer *peer, __u32 batch,
							   struct sum *out, int books)
{
	struct sum sum = *out;
	__u32 rx, tx, count, i;

	refill(peer, batch, books);
	count = xsk_ring_cons__peek(&peer->rx, batch, &rx);
	if (!count) {
		if (books && xsk_ring_prod__needs_wakeup(&peer->fill))
			peer_wake_rx(peer_fd(peer));
		return 0;
	}
	while (xsk_ring_prod__reserve(&peer->tx, count, &tx) != count)
		refill(peer, batch, books);
	for (i = 0; i < count; i++) {
		__u64 address = xsk_ring_cons__rx_desc(&peer->rx, rx + i)->addr;
		__u32 length = xsk_ring_cons__rx_desc(&peer->rx, rx + i)->len;
		struct xdp_desc *desc = xsk_ring_prod__tx_desc(&peer->tx, tx + i);

		add(&sum, address, length);
		desc->addr = address;
		desc->len = length;
		desc->options = 0;
	}
	xsk_ring_prod__submit(&peer->tx, count);
	xsk_ring_cons__release(&peer->rx, count);
	if (books) {
		peer->rx_packets += count;
		peer->tx_packets += count;
		peer->outstanding += count;
	}
	*out = sum;
	return count;
}

__u32 peer_forward(struct peer *peer, __u32 batch, struct sum *sum)
{
	return forward(peer, batch, sum, 0);
}

__u32 peer_forward_books(struct peer *peer, __u32 batch, struct sum *sum)
{
	return forward(peer, batch, sum, 1);
}

/* How many of the entries from an index on lie before the ring's end. */
static inline __u32 before(__u32 index, __u32 count, __u32 mask)
{
	__u32 left = mask + 1 - (index & mask);

	return count < left ? count : left;
}

static inline void take_descs(struct xdp_desc *to, const struct xsk_ring_cons *ring, __u32 index,
			      __u32 count)
{
	__u32 first = before(index, count, ring->mask);

	memcpy(to, xsk_ring_cons__rx_desc(ring, index), first * sizeof(*to));
	memcpy(to + first, ring->ring, (count - first) * sizeof(*to));
}

static inline void put_descs(struct xsk_ring_prod *ring, __u32 index, const struct xdp_desc *from,
			     __u32 count)
{
	__u32 first = before(index, count, ring->mask);

	memcpy(xsk_ring_prod__tx_desc(ring, index), from, first * sizeof(*from));
	memcpy(ring->ring, from + first, (count - first) * sizeof(*from));
}

static inline void take_addresses(__u64 *to, const struct xsk_ring_cons *ring, __u32 index,
				  __u32 count)
{
	__u32 first = before(index, count, ring->mask);

	memcpy(to, xsk_ring_cons__comp_addr(ring, index), first * sizeof(*to));
	memcpy(to + first, ring->ring, (count - first) * sizeof(*to));
}

static inline void put_addresses(struct xsk_ring_prod *ring, __u32 index, const __u64 *from,
				 __u32 count)
{
	__u32 first = before(index, count, ring->mask);

	memcpy(xsk_ring_prod__fill_addr(ring, index), from, first * sizeof(*from));
	memcpy(ring->ring, from + first, (count - first) * sizeof(*from));
}

static inline void add_all(struct sum *out, const struct xdp_desc *descs, __u32 count)
{
	__u64 addresses = 0, lengths = 0;
	__u32 i;

	for (i = 0; i < count; i++) {
		addresses += descs[i].addr;
		lengths += descs[i].len;
	}
	out->count += count;
	out->addresses += addresses;
	out->lengths += lengths;
}

__u32 peer_receive_slices(struct peer *peer, __u32 batch, struct sum *sum)
{
	struct xdp_desc descs[MOST];
	__u64 addresses[MOST];
	__u32 rx, fill, count, i;

	count = xsk_ring_cons__peek(&peer->rx, batch < MOST ? batch : MOST, &rx);
	if (!count || xsk_ring_prod__reserve(&peer->fill, count, &fill) != count)
		return 0;
	take_descs(descs, &peer->rx, rx, count);
	xsk_ring_cons__release(&peer->rx, count);
	add_all(sum, descs, count);
	for (i = 0; i < count; i++)
		addresses[i] = descs[i].addr & MASK;
	put_addresses(&peer->fill, fill, addresses, count);
	xsk_ring_prod__submit(&peer->fill, count);
	return count;
}

__u32 peer_transmit_slices(struct peer *peer, __u32 batch, __u32 length, struct sum *sum)
{
	struct xdp_desc descs[MOST];
	__u32 tx, completion, count, done, i;

	count = batch < peer->free ? batch : peer->free;
	count = count < MOST ? count : MOST;
	if (count && xsk_ring_prod__reserve(&peer->tx, count, &tx) == count) {
		const __u64 *frames = peer->frames + peer->free - count;

		for (i = 0; i < count; i++)
			descs[i] = (struct xdp_desc){ .addr = frames[i], .len = length };
		peer->free -= count;
		add_all(sum, descs, count);
		put_descs(&peer->tx, tx, descs, count);
		xsk_ring_prod__submit(&peer->tx, count);
	} else {
		count = 0;
	}
	done = xsk_ring_cons__peek(&peer->completion, batch, &completion);
	if (done) {
		__u64 *frames = peer->frames + peer->free;

		take_addresses(frames, &peer->completion, completion, done);
		for (i = 0; i < done; i++)
			frames[i] &= MASK;
		peer->free += done;
		xsk_ring_cons__release(&peer->completion, done);
	}
	return count;
}

__u32 peer_forward_slices(struct peer *peer, __u32 batch, struct sum *sum)
{
	struct xdp_desc descs[MOST];
	__u64 addresses[MOST];
	__u32 rx, tx, fill, completion, count, done, i;

	batch = batch < MOST ? batch : MOST;
	done = xsk_ring_cons__peek(&peer->completion, batch, &completion);
	if (done && xsk_ring_prod__reserve(&peer->fill, done, &fill) == done) {
		take_addresses(addresses, &peer->completion, completion, done);
		for (i = 0; i < done; i++)
			addresses[i] &= MASK;
		put_addresses(&peer->fill, fill, addresses, done);
		xsk_ring_prod__submit(&peer->fill, done);
		xsk_ring_cons__release(&peer->completion, done);
	}
	count = xsk_ring_cons__peek(&peer->rx, batch, &rx);
	if (!count || xsk_ring_prod__reserve(&peer->tx, count, &tx) != count)
		return 0;
	take_descs(descs, &peer->rx, rx, count);
	xsk_ring_cons__release(&peer->rx, count);
	add_all(sum, descs, count);
	for (i = 0; i < count; i++)
		descs[i].options = 0;
	put_descs(&peer->tx, tx, descs, count);
	xsk_ring_prod__submit(&peer->tx, count);
	return count;
}
