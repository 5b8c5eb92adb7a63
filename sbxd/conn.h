/* Connections: the stdio socketpair and bridges. One at most is live (proven); only it has streams. */
#ifndef SBXD_CONN_H
#define SBXD_CONN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void conn_init(void);                               /* draws the boot id */
bool conn_stdio(int fd);                            /* the first connection */
bool conn_listen(const char *abstract_name);        /* for bridges */
bool conn_live(void);
void conn_send(uint8_t type, uint32_t stream, const void *payload, size_t n);
void conn_send_eof(uint32_t stream, uint8_t channel);
bool conn_congested(void); /* so much is unsent that nobody should add events */
bool conn_pump(void);      /* sends what is ready; true: more could be sent at once */
void conn_trim(void);      /* gives buffers back when nothing is in them */
#endif
