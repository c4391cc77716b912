#include "common/object_store/forbidden_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace atl {
namespace {

bool IsForbidden4(const void* network_order) {
  uint32_t ip = 0;
  std::memcpy(&ip, network_order, sizeof ip);
  ip = ntohl(ip);
  return (ip >> 16) == 0xa9fe ||  // 169.254.0.0/16
         ip == 0x646464c8 ||      // 100.100.100.200, Alibaba's
         ip == 0xa83f8110;        // 168.63.129.16, Azure's
}

}  // namespace

bool IsForbiddenAddress(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return IsForbidden4(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.sa_family != AF_INET6) return true;
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  static constexpr uint8_t kTranslated[] = {0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0};
  static constexpr uint8_t kTunnelled[] = {0x20, 0x02};
  // An IPv4 address in another form: mapped, behind NAT64, in 6to4.
  if (IN6_IS_ADDR_V4MAPPED(&ip) || std::memcmp(ip.s6_addr, kTranslated, sizeof kTranslated) == 0) {
    return IsForbidden4(&ip.s6_addr[12]);
  }
  if (std::memcmp(ip.s6_addr, kTunnelled, sizeof kTunnelled) == 0) {
    return IsForbidden4(&ip.s6_addr[2]);
  }
  static constexpr uint8_t kClouds[][16] = {
      {0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x54},   // Amazon's
      {0xfd, 0x20, 0, 0xce, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x54}};  // Google's
  return IN6_IS_ADDR_LINKLOCAL(&ip) ||
         std::any_of(std::begin(kClouds), std::end(kClouds), [&](const uint8_t(&cloud)[16]) {
           return std::memcmp(ip.s6_addr, cloud, sizeof cloud) == 0;
         });
}

}  // namespace atl
