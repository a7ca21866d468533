/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to one rank, for the watchdog. Whoever else uses it does so beside. */
#ifndef ZERO_NET_LINK_H
#define ZERO_NET_LINK_H

#include "net.h"

struct zero_link;

/* Finds the links to ranks that call this too, each of which the higher rank of the two makes.
   Returns an error, which is that of all ranks, if one is not there within config.seconds. */
zero_status zero_net_connect(struct zero_net *net, const int *ranks, size_t count,
			     struct zero_link **links);
/* Sends the bytes as one frame, without waiting. From any thread. */
void zero_link_send_watch(struct zero_link *link, const void *data, size_t bytes);
/* The same from a signal handler. Sends nothing while another frame is on its way. */
void zero_link_send_notice(struct zero_link *link, const void *data, size_t bytes);
/* Takes the first frame that has come. *received_at: when anything came last. */
bool zero_link_take_watch(struct zero_link *link, void *data, size_t bytes, double *received_at);
/* Whether the connection is gone. */
bool zero_link_has_ended(const struct zero_link *link);

#endif
