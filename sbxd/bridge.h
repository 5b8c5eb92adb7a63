/* `sbxd bridge`: joins its own stdio to the socket that the sbxd of this sandbox listens on. */
#ifndef SBXD_BRIDGE_H
#define SBXD_BRIDGE_H
int bridge_main(const char *abstract_name); /* the exit code */
#endif
